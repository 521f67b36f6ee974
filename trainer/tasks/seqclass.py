"""Sequences of any length: predicts the package of the standard library that a function is from.

An LSTM or a GRU (TRAINER_MODEL=gru) reads a function word by word and predicts after each word. With
TRAINER_DATA each subfolder of that folder is a class, and each file in it is a sequence.

    TRAINER_TASK=seqclass torchrun --nproc-per-node 2 -m trainer
"""

import re
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

DEFAULTS = {"epochs": 5, "global_batch": 128, "optimizer": "adamw", "lr": 0.01}
MEASURED = "accuracy 0.77 after 5 epochs, 51 s (always the most frequent class: 0.35)"
CUTS = 0

PADDING = 0  # words have numbers from 1
NO_TARGET = -100  # targets that cross_entropy ignores
_WORDS = 8192  # words are hashed to so many numbers
_LONGEST = 400  # words of a sequence; the rest is left out
_PACKAGES = (
    "asyncio", "concurrent", "ctypes", "email", "http", "importlib",
    "json", "logging", "multiprocessing", "unittest", "urllib", "xml",
)  # fmt: skip
_MODELS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class Sequences:
    """Sequences of different lengths, concatenated: sample i starts at starts[i].

    `words`, shape (sum of tokens,); `starts`, `tokens` and `labels`, shape (n,).
    """

    words: Tensor
    starts: Tensor
    tokens: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return words and classes, both of shape (n, longest), padded at the end."""
        starts, ends = self.starts[indices], self.starts[indices] + self.tokens[indices]
        rows = [
            self.words[start:end].long()
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        words = pad_sequence(rows, batch_first=True, padding_value=PADDING)
        labels = self.labels[indices, None].expand_as(words)
        return words, labels.masked_fill(words == PADDING, NO_TARGET)


class Reader(nn.Module):
    """A recurrent layer over packed sequences, `cut` words at a time (0: all at once).

    The state is passed from one piece to the next, the gradient is not: truncated back-propagation
    through time (Williams and Peng, 1990). One call reads all pieces, because ranks have different
    numbers of pieces, and fully_shard communicates at each call of a module that it wraps.
    """

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], *, width: int, cut: int) -> None:
        super().__init__()
        self.recurrent = kind(width, width, batch_first=True)
        self._cut = cut

    def forward(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """Map embedded words, shape (n, length, width), to states of that shape, 0 after the end.

        `lengths`, shape (n,), descend.
        """
        lengths, longest = lengths.cpu(), int(lengths[0])
        cut = self._cut or longest
        state: tuple[Tensor, ...] | None = None
        pieces = []
        for start in range(0, longest, cut):
            left = (lengths - start).clamp(max=cut)
            going = int((left > 0).sum())  # sequences that have not ended: they come first
            piece = embedded[:going, start : min(start + cut, longest)]
            outputs, state = self._read(piece, left[:going], state)
            pieces.append(F.pad(outputs, [0, 0, 0, 0, 0, len(embedded) - going]))
        return F.pad(torch.cat(pieces, dim=1), [0, 0, 0, embedded.shape[1] - longest])

    def _read(
        self, piece: Tensor, lengths: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs over a piece, and the state after it, detached from the graph."""
        before = None
        if state is not None:
            going = [part[:, : len(piece)].contiguous() for part in state]
            before = tuple(going) if isinstance(self.recurrent, nn.LSTM) else going[0]
        packed = pack_padded_sequence(piece, lengths, batch_first=True)
        outputs, after = self.recurrent(packed, before)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=piece.shape[1])
        parts = after if isinstance(after, tuple) else (after,)
        return padded, tuple(part.detach() for part in parts)


class Model(nn.Module):
    """An embedding, a recurrent layer, and logits after every word."""

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], *, classes: int, cut: int, width: int = 64
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS + 1, width, padding_idx=PADDING)
        self.reader = Reader(kind, width=width, cut=cut)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Map words, shape (n, length), to logits, shape (n, length, classes).

        Logits of the padding are arbitrary.
        """
        lengths = (words != PADDING).sum(dim=1)
        order = lengths.argsort(descending=True, stable=True)
        states = self.reader(self.embedding(words[order]), lengths[order])
        logits: Tensor = self.head(states[order.argsort()])
        return logits


class Task:
    metric = "accuracy"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._classes = _classes(settings)

    def model(self) -> nn.Module:
        name = self._settings.model or "lstm"
        if name not in _MODELS:
            raise Fault(
                Exit.CONFIG,
                f"TRAINER_MODEL={name!r}: task {self._settings.task} has {', '.join(_MODELS)}",
            )
        return Model(_MODELS[name], classes=len(self._classes), cut=self._settings.bptt)

    def data(self, *, train: bool) -> Sequences:
        """Return the sequences. About one in five, by a hash of its words, is in the test set."""
        numbers: list[list[int]] = []
        labels = []
        for label, folder in enumerate(self._classes.values()):
            for text in _texts(folder, whole=self._settings.data is not None):
                found = re.findall(r"\w+|[^\w\s]", text)[:_LONGEST]
                # The same numbers in every process and on every machine, unlike Python's hash().
                words = [1 + zlib.crc32(word.encode()) % _WORDS for word in found]
                if words and (zlib.crc32(str(words).encode()) % 5 > 0) == train:
                    numbers.append(words)
                    labels.append(label)
        tokens = torch.tensor([len(words) for words in numbers], dtype=torch.long)
        return Sequences(
            torch.tensor([number for words in numbers for number in words], dtype=torch.int16),
            tokens.cumsum(0) - tokens,
            tokens,
            torch.tensor(labels, dtype=torch.long),
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over each sequence's words, without the padding, shape (n,)."""
        losses = F.cross_entropy(
            outputs.transpose(1, 2), targets, ignore_index=NO_TARGET, reduction="none"
        )
        return losses.sum(dim=1) / (targets != NO_TARGET).sum(dim=1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1.0 where the prediction after a sequence's last word is right, shape (n,)."""
        last = (targets != NO_TARGET).sum(dim=1) - 1
        rows = torch.arange(len(targets), device=targets.device)
        return (outputs[rows, last].argmax(dim=1) == targets[rows, last]).float()


def _classes(settings: Settings) -> dict[str, Path]:
    """Return the folder of every class, by name."""
    if settings.data is None:
        library = Path(sysconfig.get_path("stdlib"))
        return {name: library / name for name in _PACKAGES}
    try:
        found = {path.name: path for path in sorted(settings.data.iterdir()) if path.is_dir()}
    except OSError as error:
        raise Fault(Exit.DATA, f"TRAINER_DATA={settings.data}: {error.strerror}") from error
    if len(found) < 2:
        raise Fault(
            Exit.DATA,
            f"TRAINER_DATA={settings.data}: task {settings.task} found {len(found)} subfolders; "
            "it needs one for each class, with a file for each sequence",
        )
    if empty := [
        name for name, path in found.items() if not any(map(Path.is_file, path.rglob("*")))
    ]:
        raise Fault(
            Exit.DATA,
            f"TRAINER_DATA={settings.data}: no file in {', '.join(empty[:5])}; each subfolder is a "
            "class, with a file for each sequence",
        )
    return found


def _texts(folder: Path, *, whole: bool) -> Iterator[str]:
    """Yield whole files, or the functions in them, in the same order on every machine."""
    for path in sorted(folder.rglob("*" if whole else "*.py")):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            yield from [text] if whole else re.split(r"(?m)^(?= *(?:async )?def )", text)[1:]
