"""Parts of the character models: windows of bytes from a file or folder, the task, a recurrent model.

Without TRAINER_DATA the text is the source of Python's standard library, which every machine has.
"""

import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.models import chain
from trainer.tasks.parts.next_token import NextToken

VOCABULARY = 256  # bytes
LENGTH = 64  # bytes of a window
_DEFAULT_BYTES = 50_000  # trains in under a minute on two cores; TRAINER_DATA is read in full
_TEST_SHARE = 0.1


class TextTask(NextToken):
    """Predicts the next byte with the model that `build` returns."""

    def __init__(self, settings: Settings, *, build: Callable[[], nn.Module]) -> None:
        self._settings = settings
        self._build = build

    def model(self) -> nn.Module:
        return self._build()

    def data(self, *, train: bool) -> Tensors:
        """Return inputs and targets, both of shape (n, 64): the targets are the bytes that follow.

        The last tenth of the text is the test set. Raises Fault(65) when the text is too short.
        """
        place = self._settings.data
        content = _read(place)
        count = (len(content) - 1) // LENGTH
        test = int(count * _TEST_SHARE)
        if test == 0:
            raise Fault(
                Exit.DATA,
                f"task {self._settings.task}: {place} has {len(content)} bytes; training and test set "
                f"need at least {int(LENGTH / _TEST_SHARE) + 1}",
            )
        text = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
        inputs = text[: count * LENGTH].view(count, LENGTH)
        targets = text[1 : count * LENGTH + 1].view(count, LENGTH)
        chosen = slice(0, count - test) if train else slice(count - test, count)
        return Tensors(inputs[chosen], targets[chosen])


class Recurrent(nn.Module):
    """Embedding, two recurrent layers of `kind`, and a linear layer to the next byte's logits."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        # Two modules, not num_layers=2, so that the model can be cut between them.
        self.layers = nn.ModuleList(kind(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Map bytes, shape (n, length), to logits, shape (n, length, 256)."""
        return chain.run(self.chain(), text)

    def chain(self) -> chain.Chain:
        """Return the forward pass in pieces, for the modes that cut it."""
        return [
            (("embedding",), self.embedding),
            (("layers.0",), lambda x: self.layers[0](x)[0]),
            (("layers.1",), lambda x: self.layers[1](x)[0]),
            (("head",), self.head),
        ]


def library_source(size: int) -> bytes:
    """Return the first `size` bytes of the source of Python's standard library."""
    return _joined(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:size]


def _read(place: Path | None) -> bytes:
    if place is None:
        return library_source(_DEFAULT_BYTES)
    try:
        return _joined(place.glob("**/*")) if place.is_dir() else place.read_bytes()
    except OSError as error:
        raise Fault(Exit.DATA, f"TRAINER_DATA={place}: {error.strerror}") from error


def _joined(paths: Iterable[Path]) -> bytes:
    """Return the contents of the files, in the same order on every machine."""
    return b"\n".join(path.read_bytes() for path in sorted(paths) if path.is_file())
