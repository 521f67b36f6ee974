"""Wall time by cause: checked by hand, and as a sum for any events."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.report.goodput import CAUSES, Account


def account(*events: dict[str, Any]) -> Account:
    found = Account()
    for event in events:
        found.take(event)
    return found


def step(time: float, number: int, seconds: float, data: float = 0.0) -> dict[str, Any]:
    return {"event": "step", "time": time, "step": number, "seconds": seconds, "data_s": data}


def of_launcher(action: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": "attempt", "time": time, "action": action, **fields}


def test_an_attempt_with_everything_in_it() -> None:
    found = account(
        of_launcher("launched", 2, began=0),  # start 2
        of_launcher("started", 5),  # rendezvous 3
        {"event": "launch", "time": 9, "began": 5.5},  # start 4
        step(12, 10, seconds=2, data=0.5),  # start 1, training 1.5, data 0.5
        step(22, 20, seconds=10, data=1),  # training 9, data 1
        {"event": "eval", "time": 25, "seconds": 3},
        {"event": "checkpoint", "time": 26, "action": "saved", "blocked_s": 0.25},  # 0.75 unknown
        {"event": "summary", "time": 26},
        of_launcher("ended", 28, exit=0),  # end 2
    )
    assert found.by_cause() == {
        "training": 10.5,
        "data": 1.5,
        "checkpoint": 0.25,
        "evaluation": 3.0,
        "rendezvous": 3.0,
        "start": 7.0,
        "end": 2.75,
    }
    assert found.wall == 28.0
    assert found.goodput == 10.5 / 28


def test_steps_done_again_and_the_time_between_attempts() -> None:
    found = account(
        {"event": "launch", "time": 1, "began": 0},
        step(11, 100, seconds=10),
        {"event": "launch", "time": 31, "began": 30},  # killed at some time after 11: down 19
        {"event": "checkpoint", "time": 32, "action": "resumed", "step": 60},
        step(42, 140, seconds=10),  # 40 of 80 steps repeated
    )
    assert found.by_cause() == {"training": 15.0, "repeated": 5.0, "start": 3.0, "down": 19.0}


def test_waits_for_slower_ranks_are_taken_from_the_training() -> None:
    found = account(
        {"event": "launch", "time": 0, "began": 0},
        step(2, 10, seconds=2),
        {"event": "usage", "time": 10, "stragglers_s": 5},  # of 3 s that no step event has so far
        step(12, 20, seconds=10),
    )
    assert found.by_cause() == {"training": 7.0, "stragglers": 5.0}


def test_steps_after_a_rollback_are_done_again() -> None:
    found = account(
        {"event": "launch", "time": 0, "began": 0},
        step(10, 10, seconds=10),
        {"event": "fault", "kind": "rolled_back", "time": 10, "step": 10, "to": 5},
        step(20, 15, seconds=10),
    )
    assert found.by_cause() == {"training": 15.0, "repeated": 5.0}


def test_a_program_of_the_users_own_tells_no_seconds() -> None:
    lines = [{"event": "step", "time": time, "step": time} for time in (4, 6, 8)]
    found = account(of_launcher("launched", 1, began=0), of_launcher("started", 2), *lines)
    assert found.by_cause()["training"] == 6.0
    assert found.wall == 8.0


def test_the_time_before_a_programs_first_step_is_divided_by_that_of_the_next_steps() -> None:
    def lines(*pairs: tuple[float, int]) -> list[dict[str, Any]]:
        return [{"event": "step", "time": time, "step": number} for time, number in pairs]

    launch = {"event": "launch", "time": 0, "began": 0}
    # Ten steps a second: ten of the twelve seconds before the first line were imports.
    assert account(launch, *lines((12, 20), (14, 40))).by_cause() == {
        "training": 4.0,
        "start": 10.0,
    }
    # The second attempt resumed at 30, but no event says so: its first line is taken to have as many
    # steps as the next.
    again = {"event": "launch", "time": 14, "began": 14}
    found = account(launch, *lines((12, 20), (14, 40)), again, *lines((17, 40), (18, 50), (19, 60)))
    assert found.by_cause() == {"training": 6.0, "repeated": 1.0, "start": 12.0}
    resumed = {"event": "checkpoint", "action": "resumed", "step": 35, "time": 16}
    found = account(launch, *lines((12, 20), (14, 40)), again, resumed, *lines((17, 40), (18, 50)))
    assert found.by_cause() == {"training": 5.0, "repeated": 0.5, "start": 12.5}
    # A run with one line: nothing is known about its steps.
    assert account(launch, *lines((12, 20))).by_cause() == {"start": 12.0}


KINDS = ("launch", "step", "eval", "checkpoint", "fault", "summary", "error", "attempt", "usage")
ACTIONS = ("launched", "waiting", "started", "failed", "ended", "saved", "resumed", "refused")
TIMES = st.floats(-1e6, 1e9)
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(KINDS), "time": TIMES},
    optional={
        "action": st.sampled_from(ACTIONS),
        "began": TIMES,
        "kind": st.sampled_from(("rolled_back", "straggler")),
        **dict.fromkeys(("seconds", "data_s", "blocked_s", "stragglers_s"), st.floats(-1e9, 1e9)),
        **dict.fromkeys(("step", "to"), st.integers(-5, 10**9)),
    },
)


@given(st.lists(EVENTS, max_size=20))
def test_the_causes_sum_to_the_wall_time(events: list[dict[str, Any]]) -> None:
    found = account(*events)
    parts = found.by_cause()
    assert parts.keys() <= CAUSES.keys()
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(found.wall, rel=1e-9, abs=1e-6)
    assert 0 <= found.goodput <= 1


def test_every_cause_has_a_colour_of_its_own() -> None:
    pytest.importorskip("altair")  # the extra "report"
    from trainer.report.page.shares import COLOURS

    assert list(COLOURS) == list(CAUSES)
    assert len(set(COLOURS.values())) == len(CAUSES)
