"""The order of the samples, and the share of each rank.

The order is a pure function of (seed, epoch, position). The permutations of all epochs, one after the
other, are one stream, and optimiser step k takes the samples k*B .. (k+1)*B of it. World size, workers
and restarts do not change the order. Every batch is full, and each epoch has each sample once. A
sample's key, from which its augmentation draws random numbers, is a pure function of them too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat

import torch
from torch import Tensor

from trainer.plan.balance import balance
from trainer.plan.batches import Batches

PADDING = 64  # different samples that fill up a batch; a stream keeps as many


@dataclass(frozen=True)
class Samples:
    """The samples of a micro-batch: `indices` in the data set, each tensor of shape (n,).

    `weights` are the samples' weights in a mean, 0 for padding. `keys`, functions of (seed, epoch,
    index), seed the augmentation; without keys there is no augmentation. `whole`: every weight is 1.
    """

    indices: Tensor
    weights: Tensor
    keys: Tensor | None = None
    whole: bool = False

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice | Tensor) -> "Samples":
        keys = None if self.keys is None else self.keys[chosen]
        return Samples(self.indices[chosen], self.weights[chosen], keys, self.whole)

    def split(self, size: int) -> Iterator["Samples"]:
        """Yield the samples `size` at a time."""
        if len(self) == size:
            yield self
            return
        for start in range(0, len(self), size):
            yield self[start : start + size]


@dataclass(frozen=True)
class Order:
    """The stream of training samples: `length` per epoch, `end` in all (the last batch may cross it).

    `in_order`: not permuted, for an IterableDataset; an index is the position in all epochs. With
    `tokens`, shape (length,), a sample's weight is its number of tokens; else it is 1. Without `keyed`
    samples have no keys, for data that draws no random numbers.
    """

    seed: int
    length: int
    end: int
    tokens: Tensor | None = None
    keyed: bool = True
    in_order: bool = False

    def take(self, start: int, count: int, *, stop: int | None = None, first: int = 0) -> Samples:
        """Return the samples at positions start .. start+count.

        Positions from `stop` or `end` on are padding: the last PADDING positions before, but none before
        `first`, in turn, with weight 0. Copies of one sample would have no variance, and a BatchNorm's
        running variance would shrink.
        """
        end = self.end if stop is None else min(self.end, stop)
        real = max(0, min(count, end - start))
        parts = self._parts(start, real)
        if real < count:
            first = max(first, end - PADDING)
            turn = torch.arange(start + real - end, start + count - end) % (end - first)
            parts.append(torch.cat(self._parts(first, end - first), dim=1)[:, turn])
        indices, *keys = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        weights = torch.ones(count) if self.tokens is None else self.tokens[indices].float()
        weights[real:] = 0
        whole = self.tokens is None and real == count
        return Samples(indices, weights, keys[0] if keys else None, whole)

    def _parts(self, start: int, count: int) -> list[Tensor]:
        """Return indices and keys of `count` positions, in a tensor for each epoch."""
        parts = []
        done = 0
        while done < count:
            parts.append(self._in_epoch(start + done, count - done))
            done += parts[-1].shape[1]
        return parts

    def _in_epoch(self, start: int, count: int) -> Tensor:
        """Return indices and keys, shape (2, n), of `count` positions, or of those left in the epoch.

        Without keys the shape is (1, n).
        """
        epoch, first = divmod(start, self.length)
        if self.in_order:
            indices = torch.arange(start, start + min(count, self.length - first))
        else:
            indices = _permutation(self.seed, epoch, self.length)[first : first + count]
        if not self.keyed:
            return indices.unsqueeze(0)
        return torch.stack([indices, scramble(indices + mix(self.seed, epoch, "sample"))])

    def weight(self, start: int, count: int) -> float:
        """Return the sum of the weights of the samples at positions start .. start+count."""
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
    """Return int64 `values`, each mapped to bits that look random: a bijection.

    It is the last step of SplitMix64 (Steele, Lea and Flood, 2014), in integers, so every device agrees.
    """
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        values = (values ^ _shifted(values, shift)) * factor
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """Return `values` shifted right as unsigned numbers; torch shifts int64 as signed."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def training_shares(order: Order, batches: Batches, rank: int, *, start: int) -> Iterator[Samples]:
    """Yield every micro-batch of data rank `rank`, from position `start` on.

    `accumulation` micro-batches make a step. The ranks' shares of a global batch are adjacent, so that
    together they are the same samples for any number of ranks. If samples have tokens, every rank gets
    the same number of samples and about the same number of tokens, and a micro-batch has samples of
    similar length. The longest come first, so that a batch too large for the memory fails in the first
    step.
    """
    share = batches.micro * batches.accumulation
    while start < order.end:
        stop = start + batches.global_batch
        first = 0
        if order.in_order:  # going back before a saved state or the epoch would read it all again
            epoch = (min(stop, order.end) - 1) // order.length
            first = max(start, epoch * order.length)
        if order.tokens is None:
            mine = order.take(start + rank * share, share, stop=stop, first=first)
        else:
            filled = share * batches.replicas
            whole = order.take(start, filled, stop=stop, first=first)
            chosen = balance(whole.weights.tolist(), batches.replicas)[rank]
            mine = whole[torch.tensor(chosen)]
        yield from mine.split(batches.micro)
        start = stop


def evaluation_shares(
    length: int, batches: Batches, rank: int, *, tokens: Tensor | None = None
) -> Iterator[Samples]:
    """Yield data rank `rank`'s part of a test set.

    Every sample counts on exactly one rank. All ranks get equally many micro-batches of equal size:
    otherwise a mode that communicates in the forward pass would hang. If samples have tokens, a
    micro-batch has samples of similar length.
    """
    step = batches.micro * batches.replicas
    positions = torch.arange(length + -length % step).view(-1, batches.replicas, batches.micro)
    positions = positions[:, rank]
    indices, weights = positions.clamp(max=length - 1), (positions < length).float()
    if tokens is not None:
        indices = tokens.argsort(descending=True, stable=True)[indices]
        weights = weights * tokens[indices]
    whole = weights.eq(1).all(1).tolist()
    yield from map(Samples, indices, weights, repeat(None), whole)
