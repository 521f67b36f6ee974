"""Fewer points of a curve: bounded, in order, and no peak is lost."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.report.page.thin import thin

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 60))
def test_every_stretch_keeps_its_peaks(values: list[float], points: int) -> None:
    kept_steps, kept = thin(range(len(values)), values, points=points)
    assert len(kept) <= max(points, 4)
    assert kept_steps == sorted(set(kept_steps))
    assert [values[step] for step in kept_steps] == kept
    assert (kept_steps[0], kept_steps[-1]) == (0, len(values) - 1)
    assert (min(kept), max(kept)) == (min(values), max(values))


def test_a_short_curve_is_kept_whole() -> None:
    assert thin([1, 5], [0.5, 0.25], points=2) == ([1, 5], [0.5, 0.25])
