"""Steps that are lost by a return to a checkpoint: those since it, and those during a save."""

import pytest

from tests.faults.lost import returns

INTERVAL = 16


def history(done: int, saved: list[int], back_to: int) -> list[dict[str, object]]:
    """Return events: steps up to `done`, saves reported two steps after their start, and a return."""
    events: list[dict[str, object]] = []
    for step in range(1, done + 1):
        events.append({"event": "step", "step": step})
        if step - 2 in saved:
            events.append({"event": "checkpoint", "action": "saved", "step": step - 2})
    return [*events, {"event": "checkpoint", "action": "resumed", "step": back_to}]


@pytest.mark.parametrize(
    ("done", "saved", "back_to", "lost", "in_flight", "beyond"),
    [
        (31, [16], 16, 15, 0, 0),  # a whole interval
        (32, [16], 16, 16, 0, 0),  # the next save is due at this step, and had no time
        (35, [16], 16, 19, 3, 0),  # it was being written for three steps
        (35, [16], 32, 3, 3, 0),  # ... and was complete, unreported
        (35, [16, 32], 32, 3, 0, 0),
        (35, [16, 32], 16, 19, 0, 3),  # reported as complete, but not used
        (32, [], 0, 32, 16, 0),  # this save waits for the previous one, still being written
        (33, [], 0, 33, 1, 16),  # a save was skipped
        (35, [], 0, 35, 3, 16),
        (35, [16, 32], 0, 35, 0, 19),
        (20, [16, 20], 20, 0, 0, 0),  # stopped in order
    ],
)
def test_a_return_is_held_to_the_interval_and_to_what_was_being_written(
    done: int, saved: list[int], back_to: int, lost: int, in_flight: int, beyond: int
) -> None:
    saved = [one for one in saved if one <= done - 2]
    (went,) = returns(history(done, saved, back_to))
    assert went.lost == lost
    assert went.in_flight(INTERVAL) == in_flight
    assert went.beyond(INTERVAL) == beyond


def test_a_second_return_without_a_step_in_between_loses_nothing_more() -> None:
    again = {"event": "checkpoint", "action": "resumed", "step": 16}
    assert [went.lost for went in returns([*history(20, [16], 16), again])] == [4, 0]
