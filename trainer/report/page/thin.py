"""Reduces the points of a curve, but keeps every peak that a chart can show.

steps, values = thin(curve.steps, curve.values, points=400)
"""

from collections.abc import Sequence


def thin(
    steps: Sequence[int], values: Sequence[float], *, points: int
) -> tuple[list[int], list[float]]:
    """Return at most `points`: the first, the last, and the lowest and highest of each stretch."""
    count = len(values)
    if count <= points:
        return list(steps), list(values)
    stretches = max((points - 2) // 2, 1)
    kept = {0, count - 1}
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return [steps[i] for i in sorted(kept)], [values[i] for i in sorted(kept)]
