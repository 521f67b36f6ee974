"""Equal work for every rank: a batch of unequal samples dealt out so that the sums are nearly equal.

Pure and the same on every rank, so that none has to ask another. Free of torch.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence

_CLOSE = 0.01  # of the mean; what a rank waits for the heaviest one is then noise


def balance(sizes: Sequence[float], parts: int) -> list[list[int]]:
    """Deal `sizes` out to `parts`, equally many to each; return the indices of each, the largest first.

    Largest first to the part that has least and is not full (Graham, 1969), then swaps between the
    heaviest part and another as long as they help: a very long sample leaves its part with places
    that only short ones may fill. `parts` must divide the number of sizes. Deterministic.
    """
    if len(sizes) % parts:
        raise ValueError(f"{len(sizes)} samples cannot be dealt out to {parts} equally")
    room = len(sizes) // parts
    dealt: list[list[int]] = [[] for _ in range(parts)]
    sums = [0.0] * parts
    least = [(0.0, part) for part in range(parts)]  # a heap of those that are not full
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        _, part = heapq.heappop(least)
        dealt[part].append(index)
        sums[part] += sizes[index]
        if len(dealt[part]) < room:
            heapq.heappush(least, (sums[part], part))
    while _swap(sizes, dealt, sums):
        pass
    return [sorted(part, key=lambda index: (-sizes[index], index)) for part in dealt]


def _swap(sizes: Sequence[float], dealt: list[list[int]], sums: list[float]) -> bool:
    """Swap one sample of the heaviest part for a smaller one of another; return whether one helped."""
    parts = sorted(range(len(sums)), key=lambda part: (sums[part], part))
    heavy, close = parts[-1], _CLOSE * sum(sums) / len(sums)
    for light in parts[:-1]:
        gap = sums[heavy] - sums[light]
        if gap <= close:
            return False
        lighter = sorted(dealt[light], key=lambda index: (sizes[index], index))
        values = [sizes[index] for index in lighter]
        best, pair = 0.0, None
        for mine in dealt[heavy]:
            # what moves over should come near half the gap
            near = bisect_left(values, sizes[mine] - gap / 2)
            for k in (near - 1, near):
                if 0 <= k < len(values) and (moved := sizes[mine] - values[k]) > 0:
                    gain = min(moved, gap - moved)
                    if gain > best:
                        best, pair = gain, (mine, lighter[k], moved)
        if pair is not None:
            mine, theirs, moved = pair
            dealt[heavy][dealt[heavy].index(mine)] = theirs
            dealt[light][dealt[light].index(theirs)] = mine
            sums[heavy] -= moved
            sums[light] += moved
            return True
    return False
