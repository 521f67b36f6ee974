"""Cut a chain of costs into contiguous stages; the most expensive stage is as cheap as possible."""

from collections.abc import Sequence
from itertools import accumulate, pairwise


def partition(costs: Sequence[float], parts: int) -> list[range]:
    """Return `parts` contiguous ranges over `costs`, none empty, in order.

    The largest sum of a range is the smallest possible (the linear partition problem, by dynamic
    programming in O(n^2 parts); Skiena, The Algorithm Design Manual, 10.7). Raises ValueError when
    there are fewer costs than parts.
    """
    if not 1 <= parts <= len(costs):
        raise ValueError(f"{len(costs)} costs cannot be cut into {parts} parts")
    until = list(accumulate(costs, initial=0.0))
    # worst[end]: the largest sum of a range so far, when the ranges cover costs[:end]
    worst = until
    cuts: list[list[int]] = []
    for part in range(2, parts + 1):
        best = [float("inf")] * len(until)
        cut = [0] * len(until)
        for end in range(part, len(until)):
            for start in range(part - 1, end):
                largest = max(worst[start], until[end] - until[start])
                if largest < best[end]:
                    best[end], cut[end] = largest, start
        worst = best
        cuts.append(cut)
    bounds = [len(costs)]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return [range(start, end) for start, end in pairwise([0, *reversed(bounds)])]


def shares(sizes: Sequence[float], operations: Sequence[float]) -> list[float]:
    """Return each piece's share of the total cost: the mean of its shares of bytes and of operations.

    So time and memory have the same weight. If no operations were counted, bytes decide.
    """
    size, work = sum(sizes), sum(operations)
    if not work:
        return [each / size for each in sizes]
    return [(b / size + n / work) / 2 for b, n in zip(sizes, operations, strict=True)]
