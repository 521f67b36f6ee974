"""Which samples a step sees, and which rank sees which of them.

The order is a pure function of (seed, epoch, position): the epochs' permutations stand end to end in
one stream, and optimiser step k takes the samples k*B .. (k+1)*B of it. Neither world size nor
workers nor restarts change it, every batch is full, and each epoch holds each sample once. So is what
a sample draws for its augmentation, which comes from a key of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from trainer.plan.balance import balance
from trainer.plan.batches import Batches


@dataclass(frozen=True)
class Samples:
    """Which samples make a micro-batch: `indices` in the data set, each tensor of shape (n,).

    `weights` is what a sample counts in a mean, 0 where it only fills the shape. `keys` is what its
    augmentation is drawn from, a function of (seed, epoch, index); without keys nothing is drawn.
    """

    indices: Tensor
    weights: Tensor
    keys: Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice | Tensor) -> "Samples":
        keys = None if self.keys is None else self.keys[chosen]
        return Samples(self.indices[chosen], self.weights[chosen], keys)

    def split(self, size: int) -> Iterator["Samples"]:
        """Yield the samples `size` at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]


@dataclass(frozen=True)
class Order:
    """The stream of training samples: `length` a pass, `end` in all (the last batch may cross it).

    With `tokens`, shape (length,), a sample counts as often as it has tokens; else it counts once.
    """

    seed: int
    length: int
    end: int
    tokens: Tensor | None = None

    def take(self, start: int, count: int, *, stop: int | None = None) -> Samples:
        """Return the samples at positions start .. start+count.

        What lies beyond `stop`, or the end, repeats the last position before it, at weight 0.
        """
        end = self.end if stop is None else min(self.end, stop)
        positions = torch.arange(start, start + count).clamp_(max=end - 1)
        indices, keys = torch.empty(2, count, dtype=torch.long)
        epochs = positions // self.length
        for epoch in epochs.unique().tolist():
            here = epochs == epoch
            order = _permutation(self.seed, epoch, self.length)
            indices[here] = order[positions[here] % self.length]
            keys[here] = scramble(indices[here] + mix(self.seed, epoch, "sample"))
        weights = torch.ones(count) if self.tokens is None else self.tokens[indices].float()
        weights *= torch.arange(start, start + count) < end
        return Samples(indices, weights, keys)

    def weight(self, start: int, count: int) -> float:
        """Return what the samples at positions start .. start+count weigh together."""
        count = min(count, self.end - start)
        if self.tokens is None:
            return float(count)
        return float(self.take(start, count).weights.double().sum())


@lru_cache(maxsize=2)  # a batch may straddle two epochs
def _permutation(seed: int, epoch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(length, generator=generator)


def mix(*parts: int | str) -> int:
    """Return a seed, 0 <= seed < 2**63, that differs when any part does."""
    digest = blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def scramble(values: Tensor) -> Tensor:
    """Return int64 `values`, each turned into bits that look random: a bijection.

    The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); integers, so equal on every device.
    """
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """Return `values` shifted right as if unsigned, which torch's int64 does not."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def training_shares(order: Order, batches: Batches, rank: int, *, start: int) -> Iterator[Samples]:
    """Yield every micro-batch of data rank `rank`, from position `start` on.

    `accumulation` micro-batches make a step. The ranks' shares of a global batch stand side by side,
    so that together they are the same samples for any number of ranks. Where samples have tokens the
    ranks get equally many samples with nearly as many tokens, and a micro-batch holds samples of
    similar length, the longest first: what does not fit in memory is known at the first step.
    """
    share = batches.micro * batches.accumulation
    while start < order.end:
        if order.tokens is None:
            mine = order.take(start + rank * share, share, stop=start + batches.global_batch)
        else:
            filled = share * batches.replicas
            whole = order.take(start, filled, stop=start + batches.global_batch)
            chosen = balance(whole.weights.tolist(), batches.replicas)[rank]
            mine = whole[torch.tensor(chosen)]
        yield from mine.split(batches.micro)
        start += batches.global_batch


def evaluation_shares(
    length: int, batches: Batches, rank: int, *, tokens: Tensor | None = None
) -> Iterator[Samples]:
    """Yield data rank `rank`'s part of a test set.

    Every sample has its weight on exactly one rank, and every rank gets equally many, equally large
    micro-batches: a mode that communicates in the forward pass would hang otherwise. Where samples
    have tokens, those of similar length come together.
    """
    order = None if tokens is None else tokens.argsort(descending=True, stable=True)
    step = batches.micro * batches.replicas
    for start in range(0, length, step):
        positions = torch.arange(start + rank * batches.micro, start + (rank + 1) * batches.micro)
        indices, weights = positions.clamp(max=length - 1), (positions < length).float()
        if order is not None and tokens is not None:
            indices = order[indices]
            weights = weights * tokens[indices]
        yield Samples(indices, weights)
