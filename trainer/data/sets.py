"""The kinds of data sets, in memory or read sample by sample, and their batches."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Subset

from trainer.distributed.tensors import on_device

# Tensors in nested dicts, tuples and lists; other values are passed on unchanged.
Nested = Any


@runtime_checkable
class InMemory(Protocol):
    """Data that returns many samples at once."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Nested:
        """Return the samples `indices`, shape (n,), along dimension 0: a pair of inputs and targets.

        A value that is not a pair goes whole to the model and to the loss, like a sample of a MapStyle.
        """
        ...


@runtime_checkable
class Transformed(Protocol):
    """Data whose inputs are transformed on the device, a whole batch at once."""

    def transform_batch(self, inputs: Nested, keys: Tensor | None) -> Nested:
        """Return the model's inputs. A sample's random numbers must come only from its key.

        `keys` has shape (n,); in evaluation it is None.
        """
        ...


class MapStyle(Protocol):
    """Data that returns one sample at a time, like `torch.utils.data.Dataset`; workers read it.

    Samples of unequal shape need a method `collate(samples)` that returns a batch of them.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


Data = InMemory | MapStyle


@dataclass(frozen=True)
class Tensors:
    """A data set of two tensors on one device, inputs and targets, with one sample per row."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if (inputs := len(self.inputs)) != (targets := len(self.targets)):
            raise ValueError(
                f"Tensors of {inputs} inputs and {targets} targets; wanted: one for each"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = on_device(indices, self.inputs.device)
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one sample, for `Subset` and other data sets made of this one."""
        return self.inputs[index], self.targets[index]


def tokens_of(data: Data) -> Tensor | None:
    """Return the number of tokens of each sample, shape (len(data),), if the data has `tokens`.

    Then a sample's loss is a mean over its tokens, its weight is the number of its tokens, and the ranks
    get batches with about the same number of tokens.
    """
    return getattr(data, "tokens", None)


def pass_on(part: Subset[Any]) -> None:
    """Give a part of a data set the `collate`, `transform_batch` and `tokens` of the whole.

    torch's random_split() returns parts that have none of them.
    """
    whole: Any = part.dataset
    if isinstance(whole, Subset):
        pass_on(whole)
    found = {name: getattr(whole, name, None) for name in ("collate", "transform_batch")}
    tokens = tokens_of(whole)
    if isinstance(tokens, Tensor) and tokens.shape == (len(whole),):
        found["tokens"] = tokens[torch.tensor(part.indices)]
    for name, value in found.items():
        if value is not None and not hasattr(part, name):
            setattr(part, name, value)


@dataclass(frozen=True)
class UnreadableSample:
    """A sample that cannot be read: its index, its file ("" if unknown), and the error.

    `weight` is the weight that it would have had in the mean.
    """

    index: int
    file: str
    reason: str
    weight: float = 0.0


@dataclass(frozen=True)
class Batch:
    """A micro-batch of one rank; `weights`, shape (n,), are the samples' weights in a mean.

    The weight is 0 for padding, and for a sample that replaces one of `unreadable`. `whole`: every
    weight is 1, which is known without reading the tensor on the device.
    """

    inputs: Nested
    targets: Nested
    weights: Tensor
    unreadable: tuple[UnreadableSample, ...] = ()
    whole: bool = False
