"""Equal work for every rank: divide a batch of unequal samples so that the sums are nearly equal.

The result is the same on every rank, so the ranks do not communicate. Imports no torch.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence

_CLOSE = 0.01  # of the mean: then the wait for the slowest rank is negligible


def balance(sizes: Sequence[float], parts: int) -> list[list[int]]:
    """Divide `sizes` into `parts` of equal length; return the indices of each part, the largest first.

    Samples are assigned from the largest to the smallest, each to the part with the smallest sum that
    is not full (Graham, 1969). Then samples are swapped between the heaviest part and others as long as
    that helps: a part with a very long sample otherwise lacks short ones. `parts` must divide the number
    of sizes.
    """
    if len(sizes) % parts:
        raise ValueError(f"{len(sizes)} samples cannot be divided into {parts} equal parts")
    room = len(sizes) // parts
    divided: list[list[int]] = [[] for _ in range(parts)]
    sums = [0.0] * parts
    smallest = [(0.0, part) for part in range(parts)]  # a heap of the parts that are not full
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        _, part = heapq.heappop(smallest)
        divided[part].append(index)
        sums[part] += sizes[index]
        if len(divided[part]) < room:
            heapq.heappush(smallest, (sums[part], part))
    while _swap(sizes, divided, sums):
        pass
    return [sorted(part, key=lambda index: (-sizes[index], index)) for part in divided]


def _swap(sizes: Sequence[float], divided: list[list[int]], sums: list[float]) -> bool:
    """Swap a sample of the heaviest part for a smaller one of another; return whether a swap helped."""
    parts = sorted(range(len(sums)), key=lambda part: (sums[part], part))
    heavy, close = parts[-1], _CLOSE * sum(sums) / len(sums)
    for light in parts[:-1]:
        gap = sums[heavy] - sums[light]
        if gap <= close:
            return False
        lighter = sorted(divided[light], key=lambda index: (sizes[index], index))
        values = [sizes[index] for index in lighter]
        best, pair = 0.0, None
        for mine in divided[heavy]:
            # the best move is close to half the gap
            near = bisect_left(values, sizes[mine] - gap / 2)
            for k in (near - 1, near):
                if 0 <= k < len(values) and (moved := sizes[mine] - values[k]) > 0:
                    gain = min(moved, gap - moved)
                    if gain > best:
                        best, pair = gain, (mine, lighter[k], moved)
        if pair is not None:
            mine, theirs, moved = pair
            divided[heavy][divided[heavy].index(mine)] = theirs
            divided[light][divided[light].index(theirs)] = mine
            sums[heavy] -= moved
            sums[light] += moved
            return True
    return False
