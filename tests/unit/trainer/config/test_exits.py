"""The exit codes: the table, and the combined code of several ranks."""

import pytest

from trainer.config.exits import MEANINGS, Action, Exit, codes_for, combine


def test_the_table_is_the_contract() -> None:
    actions = {
        64: Action.FAIL,
        65: Action.FAIL,
        69: Action.RETRY_PEER,
        70: Action.RETRY,
        71: Action.RETRY_ELSEWHERE,
        72: Action.FAIL,
        143: Action.RETRY_FREE,
    }
    assert {int(code): MEANINGS[code].action for code in Exit if code} == actions
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize(
    ("codes", "combined"),
    [
        ([], 0),
        ([0, 0], 0),
        ([69, 70, 69], 70),  # the cause, not the ranks that lost it as a peer
        ([69, 64], 64),
        ([143, 143], 143),
        ([143, 69], 69),  # not every rank has saved
        ([-9, 69], 70),  # killed by a signal
        ([1], 70),
        ([71, 69], 71),
        ([72, 69], 72),
    ],
)
def test_a_cause_comes_before_its_consequences(codes: list[int], combined: int) -> None:
    assert combine(codes) == combined


def test_codes_are_listed_ascending_as_kubernetes_wants_them() -> None:
    assert codes_for(Action.FAIL) == [64, 65, 72]
    assert codes_for(Action.RETRY_PEER, Action.RETRY_FREE, Action.RETRY) == [69, 70, 143]
