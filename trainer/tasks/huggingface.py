"""A transformers model with its tokenizer, on text or JSON lines: any AutoModelFor... with logits.

Reads TRAINER_DATA/train.jsonl and val.jsonl, or train.txt and val.txt. TRAINER_MODEL is a name or
folder, whose weights are loaded, or the .json file of a configuration, for random weights.

    TRAINER_TASK=huggingface TRAINER_MODEL=gpt2 TRAINER_DATA=stories python -m trainer
"""

import contextlib
import json
import math
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

import trainer.config.settings
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import HuggingFace

DEFAULTS = {
    "model": "openai-community/gpt2",
    "epochs": 3,
    "optimizer": "adamw",
    "lr": 5e-5,
    "global_batch": 8,
}
CUTS = 0
NEEDS_DATA = True
OWN_SETTINGS = True

_IGNORED = -100  # a label that does not count, as in transformers
_NEXT = "AutoModelForCausalLM"  # its label at a position is the token after it
_OF_TOKENS = "AutoModelForTokenClassification"  # its `labels` are classes

Sample = dict[str, Any]


class Task:
    """A sample is a dict of the model's inputs and `labels`."""

    metric = "accuracy"
    Settings = HuggingFace

    def __init__(
        self, settings: trainer.config.settings.Settings, own: HuggingFace | None = None
    ) -> None:
        if find_spec("transformers") is None:
            raise Fault(
                Exit.CONFIG,
                "task huggingface: needs the package transformers, which is not installed here; "
                "run `pip install transformers`; for pods put it into setup of the job file",
            )
        self._library: Any = import_module("transformers")
        self._own = own or HuggingFace()
        if not hasattr(self._library, self._own.head):
            raise Fault(
                Exit.CONFIG,
                f"TRAINER_TASK_HEAD={self._own.head!r}: transformers "
                f"{self._library.__version__} has no such class",
            )
        self._name = str(settings.model or DEFAULTS["model"])
        self._folder = Path(settings.data or "")
        self._shifts = self._own.head == _NEXT
        # A perplexity is defined for tokens.
        self.of_mean = {"perplexity": math.exp} if self._shifts else {}

    def model(self) -> nn.Module:
        kind = getattr(self._library, self._own.head)
        with _named("TRAINER_MODEL", self._name):
            config = self._library.AutoConfig.from_pretrained(self._name)
            # A head that has these numbers is kept. Another starts with random weights.
            if new := not {*self._classes} <= {*range(config.num_labels)}:
                config.num_labels = len(self._classes)
            if self._name.endswith(".json"):
                return _Logits(kind.from_config(config))
            more = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": new}
            return _Logits(kind.from_pretrained(self._name, **more))

    def data(self, *, train: bool) -> "_Samples":
        part = "train" if train else "val"
        lines, text = self._folder / f"{part}.jsonl", self._folder / f"{part}.txt"
        if lines.exists():
            samples = [self._sample(one, where) for where, one in _objects(lines)]
        elif text.exists() and self._shifts:
            samples = self._windows(text)
        else:
            wanted = f"{part}.jsonl{f' or {part}.txt' if self._shifts else ''}"
            raise Fault(
                Exit.DATA, f"TRAINER_DATA={self._folder}: task huggingface needs {wanted} there"
            )
        kept = [one for one in samples if self._counted(one)]
        of_tokens = any(isinstance(one["labels"], list) for one in kept)
        counts = [self._counted(one) for one in kept] if of_tokens else None
        return _Samples(kept, counts, padding=self._padding())

    def loss(self, outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
        """Return the cross-entropy of each sample, the mean over its labels, shape (n,)."""
        nats, _, counted = self._by_label(outputs, targets["labels"])
        return nats.sum(dim=1) / counted.sum(dim=1)

    def score(
        self, outputs: Tensor, targets: dict[str, Tensor]
    ) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        """Return the share of each sample's labels that were predicted right, its nats, its tokens."""
        nats, right, counted = self._by_label(outputs, targets["labels"])
        number = counted.sum(dim=1)
        shares = (right & counted).sum(dim=1) / number
        if not self.of_mean:
            return {"accuracy": shares}
        return {"accuracy": shares, "perplexity": (nats.sum(dim=1), number.to(nats.dtype))}

    def _by_label(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each label, shape (n, m): the loss, whether it was predicted, whether it counts."""
        if labels.dim() == 1:
            logits, labels = logits[:, None], labels[:, None]
        if self._shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        flat = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=_IGNORED
        )
        return flat.view(labels.shape), logits.argmax(dim=-1) == labels, labels != _IGNORED

    def _counted(self, sample: Sample) -> int:
        labels = sample["labels"]
        if isinstance(labels, int):
            return 1
        return sum(label != _IGNORED for label in labels[1 if self._shifts else 0 :])

    @cached_property
    def _tokenizer(self) -> Any:
        of_model = Path(self._name).parent if self._name.endswith(".json") else self._name
        setting = "TRAINER_TASK_TOKENIZER" if self._own.tokenizer else "TRAINER_MODEL"
        with _named(setting, self._own.tokenizer or self._name):
            return self._library.AutoTokenizer.from_pretrained(self._own.tokenizer or of_model)

    @cached_property
    def _classes(self) -> list[int | str]:
        """The labels in the training set's lines; empty if there are none."""
        lines = self._folder / "train.jsonl"
        if self._shifts or not lines.exists():
            return []
        found: set[int | str] = set()
        for where, line in _objects(lines):
            if "target" in line:  # then its label is not used
                continue
            of_tokens = line.get("labels", []) if self._own.head == _OF_TOKENS else []
            for label in [line["label"]] if "label" in line else of_tokens:
                if not isinstance(label, int | str):
                    raise Fault(
                        Exit.DATA,
                        f"{where}: label {label!r}: wanted a class, a whole number or a text; a number "
                        "to estimate (regression) or several classes need a task of your own",
                    )
                found.add(label)
        found.discard(_IGNORED)
        numbers = [label for label in found if isinstance(label, int)]
        if len(numbers) == len(found):
            return [*range(max(numbers, default=-1) + 1)]
        return sorted(found, key=str)

    def _sample(self, line: dict[str, Any], where: str) -> Sample:
        """Return the inputs and labels of a line of JSON."""
        try:
            if "text" in line:
                texts = [line["text"], *([line["pair"]] if "pair" in line else [])]
                made = self._tokenizer(*texts, truncation=True, max_length=self._own.length)
                sample: Sample = {name: made[name] for name in made}
            else:
                sample = {name: line[name] for name in line if name not in ("label", "target")}
            if "target" in line:
                target = self._tokenizer(
                    text_target=line["target"], truncation=True, max_length=self._own.length
                )
                sample["labels"] = target["input_ids"]
            elif "label" in line and not self._shifts:
                sample["labels"] = self._class(line["label"], where)
            elif "labels" in line and self._own.head == _OF_TOKENS:
                sample["labels"] = [
                    one if one == _IGNORED else self._class(one, where) for one in line["labels"]
                ]
            elif "labels" in line:
                sample["labels"] = line["labels"]
            elif self._shifts and "input_ids" in sample:
                sample["labels"] = sample["input_ids"]
        except (KeyError, TypeError, ValueError) as error:
            raise Fault(Exit.DATA, f"{where}: {type(error).__name__}: {error}") from error
        if "labels" not in sample or "input_ids" not in sample:
            raise Fault(
                Exit.DATA,
                f"{where}: has {', '.join(line) or 'nothing'}; wanted: text or input_ids"
                f"{'' if self._shifts else f', and for {self._own.head} label, labels or target'}",
            )
        return sample

    def _class(self, label: object, where: str) -> int:
        for number, name in enumerate(self._classes):
            if name == label:
                return number
        known = ", ".join(map(str, self._classes[:5]))
        raise Fault(
            Exit.DATA, f"{where}: label {label!r} is not a class of train.jsonl, e.g. {known}"
        )

    def _windows(self, path: Path) -> list[Sample]:
        """Return a text as consecutive windows of tokens."""
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Fault(Exit.DATA, f"{path}: not UTF-8: {error}") from error
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        length = self._own.length
        windows = [tokens[start : start + length] for start in range(0, len(tokens), length)]
        return [{"input_ids": one, "labels": one} for one in windows]

    def _padding(self) -> int:
        """Return the padding token; its label does not count."""
        given = "_tokenizer" in vars(self) and self._tokenizer.pad_token_id
        return given or 0


class _Logits(nn.Module):
    """A transformers model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: dict[str, Tensor]) -> Tensor:
        # Only a model with a decoder gets the labels, because the decoder's inputs are made from them.
        config: Any = self.model.config
        needs_labels = config.is_encoder_decoder
        inputs = {k: v for k, v in sample.items() if k != "labels" or needs_labels}
        try:
            logits: Tensor = self.model(**inputs).logits
        except IndexError as error:
            ids, has = inputs["input_ids"], config.get_text_config()
            raise Fault(
                Exit.DATA,
                f"TRAINER_DATA: a sample has {ids.shape[1]} tokens, numbers up to {int(ids.max())}; "
                f"the model knows {has.vocab_size} tokens, and at most "
                f"{getattr(has, 'max_position_embeddings', 'any number')} in a sample; is "
                "TRAINER_TASK_LENGTH or TRAINER_TASK_TOKENIZER that of another model?",
            ) from error
        return logits


class _Samples:
    """Samples of any length; `tokens` is the number of labels of each."""

    def __init__(self, samples: list[Sample], counts: list[int] | None, *, padding: int) -> None:
        self._samples, self._padding = samples, padding
        self.tokens = None if counts is None else torch.tensor(counts)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def collate(self, samples: list[Sample]) -> dict[str, Tensor]:
        """Return a batch, with each sample padded to the length of the longest."""
        fill = {"input_ids": self._padding, "labels": _IGNORED}
        batch = {}
        for name, first in samples[0].items():
            values = [one[name] for one in samples]
            if isinstance(first, list):
                longest = max(map(len, values))
                missing = fill.get(name, 0)
                values = [value + [missing] * (longest - len(value)) for value in values]
            batch[name] = torch.tensor(values)
        # The attention ignores padding.
        if "attention_mask" not in batch:
            lengths = torch.tensor([len(one["input_ids"]) for one in samples])
            places = torch.arange(batch["input_ids"].shape[1])
            batch["attention_mask"] = (places < lengths[:, None]).long()
        return batch


@contextlib.contextmanager
def _named(setting: str, name: str) -> Iterator[None]:
    """Raise a Fault that names the setting: 64 for a wrong value, 65 for missing files."""
    try:
        yield
    except (OSError, SafetensorError, ValueError) as error:
        said = str(error).strip().partition("\n")[0].rstrip(".: ")
        raise Fault(
            Exit.CONFIG if isinstance(error, ValueError) else Exit.DATA,
            f"{setting}={name!r}: transformers cannot load it: {said}; wanted: a name on the hub (with "
            "HF_HUB_OFFLINE=1 in its cache), a folder, or for a model a configuration's .json file",
        ) from error


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with its file and line. Raises Fault(65)."""
    with path.open("rb") as file:  # json decodes a line, so that an error names it
        for number, text in enumerate(file, start=1):
            if text.isspace():
                continue
            where = f"{path}, line {number}"
            try:
                found = json.loads(text)
            except ValueError as error:
                raise Fault(Exit.DATA, f"{where}: not JSON: {error}") from error
            if not isinstance(found, dict):
                raise Fault(
                    Exit.DATA, f'{where}: not a JSON object; wanted: e.g. {{"text": "..."}}'
                )
            yield where, found
