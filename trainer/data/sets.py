"""What data is: sets that give many samples at once, or one at a time, and the batch they become."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class InMemory(Protocol):
    """Data that can give many samples at once."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples `indices`, shape (n,), along dimension 0."""
        ...


@runtime_checkable
class Transformed(Protocol):
    """Data whose inputs are made ready on the device, a whole batch at once."""

    def transform_batch(self, inputs: Tensor, keys: Tensor | None) -> Tensor:
        """Return what the network reads; what a sample draws comes from its key, shape (n,).

        There are no keys in evaluation.
        """
        ...


class MapStyle(Protocol):
    """Data that gives one sample at a time: `torch.utils.data.Dataset`, read by worker processes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


Data = InMemory | MapStyle


@dataclass(frozen=True)
class Tensors:
    """A data set that is two tensors, on one device: inputs and targets, one sample a row."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.inputs.device)
        return self.inputs[indices], self.targets[indices]


def tokens_of(data: Data) -> Tensor | None:
    """Return how many tokens each sample has, shape (len(data),), where data says so in `tokens`.

    A sample's loss is then a mean over its tokens and counts as often as it has some, and the ranks
    get batches with equally many.
    """
    return getattr(data, "tokens", None)


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be read: its index, its file if that is known, and what went wrong.

    `weight` is what it would have counted.
    """

    index: int
    where: str
    why: str
    weight: float = 0.0


@dataclass(frozen=True)
class Batch:
    """A micro-batch of one rank; `weights`, shape (n,), is what each sample counts in a mean.

    It is 0 where a sample only fills the shape, or stands in for one of `bad`.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    bad: tuple[Bad, ...] = ()
