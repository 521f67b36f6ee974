"""Which samples a step sees, and how they reach the device.

The order is a pure function of (seed, epoch, position): the epochs' permutations stand end to end in
one stream, and optimiser step k takes the samples k*B .. (k+1)*B of it. Neither world size nor
workers nor restarts change it, every batch is full, and each epoch holds each sample once.
"""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainer.sizing import Batches


@runtime_checkable
class InMemory(Protocol):
    """Data that can give many samples at once."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples `indices`, shape (n,), along dimension 0."""
        ...


class MapStyle(Protocol):
    """Data that gives one sample at a time: `torch.utils.data.Dataset`, read by worker processes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


Data = InMemory | MapStyle


@dataclass(frozen=True)
class Tensors:
    """A data set that is two tensors: inputs and targets, one sample a row."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[indices], self.targets[indices]


@dataclass(frozen=True)
class Batch:
    """A micro-batch of one rank; `weights`, shape (n,), is 0 where a sample only fills the shape."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Order:
    """The stream of training samples: `length` a pass, `end` in all (the last batch may cross it)."""

    seed: int
    length: int
    end: int

    def take(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the sample indices at positions start .. start+count, and their weights.

        Both have shape (count,). What lies beyond the end repeats the last position, at weight 0.
        """
        positions = torch.arange(start, start + count).clamp_(max=self.end - 1)
        weights = (torch.arange(start, start + count) < self.end).float()
        indices = torch.empty(count, dtype=torch.long)
        epochs = positions // self.length
        for epoch in epochs.unique().tolist():
            here = epochs == epoch
            indices[here] = _permutation(self.seed, epoch, self.length)[
                positions[here] % self.length
            ]
        return indices, weights


@lru_cache(maxsize=2)  # a batch may straddle two epochs
def _permutation(seed: int, epoch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(length, generator=generator)


def mix(*parts: int) -> int:
    """Return a seed, 0 <= seed < 2**63, that differs when any part does."""
    digest = blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def training_shares(
    order: Order, batches: Batches, rank: int, *, start: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices and weights of every micro-batch of data rank `rank`, from position `start` on.

    `accumulation` micro-batches make a step. The ranks' shares of a global batch stand side by side,
    so that together they are the same samples for any number of ranks.
    """
    share = batches.micro * batches.accumulation
    while start < order.end:
        indices, weights = order.take(start + rank * share, share)
        yield from zip(indices.split(batches.micro), weights.split(batches.micro), strict=True)
        start += batches.global_batch


def evaluation_shares(length: int, batches: Batches, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices and weights of data rank `rank`'s part of a test set.

    Every sample has weight 1 on exactly one rank, and every rank gets equally many, equally large
    micro-batches: a mode that communicates in the forward pass would hang otherwise.
    """
    step = batches.micro * batches.replicas
    for start in range(0, length, step):
        positions = torch.arange(start + rank * batches.micro, start + (rank + 1) * batches.micro)
        yield positions.clamp(max=length - 1), (positions < length).float()


def load(
    data: Data,
    shares: Iterator[tuple[Tensor, Tensor]],
    *,
    device: torch.device,
    workers: int,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Batch]:
    """Yield the micro-batches that `shares` name, on `device`, inputs of real numbers as `dtype`.

    In-memory data is indexed here. Other data comes through a DataLoader with `workers` processes.
    """
    if isinstance(data, InMemory):
        for indices, weights in shares:
            inputs, targets = data.batch(indices)
            yield _on_device(inputs, targets, weights, device=device, dtype=dtype)
        return
    for inputs, targets, weights in _through_loader(data, shares, device, workers=workers):
        yield _on_device(inputs, targets, weights, device=device, dtype=dtype)


def _on_device(
    inputs: Tensor, targets: Tensor, weights: Tensor, *, device: torch.device, dtype: torch.dtype
) -> Batch:
    return Batch(
        inputs.to(device, dtype if inputs.is_floating_point() else None, non_blocking=True),
        targets.to(device, non_blocking=True),
        weights.to(device, non_blocking=True),
    )


def _through_loader(
    data: MapStyle, shares: Iterator[tuple[Tensor, Tensor]], device: torch.device, *, workers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    pending: list[Tensor] = []

    def batch_sampler() -> Iterator[Sequence[int]]:
        for indices, weights in shares:
            pending.append(weights)
            yield indices.tolist()

    if workers:
        _start_loader_server()
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        data,  # type: ignore[arg-type]  # the protocol is all it needs of a Dataset
        batch_sampler=batch_sampler(),  # type: ignore[arg-type]
        num_workers=workers,
        pin_memory=device.type != "cpu",
        # A forked worker can dead-lock with NCCL, says the DDP documentation.
        multiprocessing_context="forkserver" if workers else None,
    )
    for inputs, targets in loader:
        yield inputs, targets, pending.pop(0)


def _start_loader_server() -> None:
    """Start the process that forks the loader's workers, with the signals of a stop blocked.

    A blocked signal stays blocked in what a process starts. torchrun signals the whole process group,
    and a run that is to save its state still needs its loader, and the loader its server: both ranks
    died in next(loader) before they had saved.
    """
    resource_tracker.ensure_running()  # first: its own start unblocks these signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
