"""What counts as the cause if a rank has signs of several."""

import pytest

from trainer.diagnosis.diagnose import diagnose, in_words
from trainer.diagnosis.signs import Sign

CLOSED = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 30, in main',
    "    loss.backward()",
    "RuntimeError: Connection closed by peer [127.0.0.1]:4711",
)


def test_an_error_without_words_is_the_cause_of_an_abort_after_it() -> None:
    """gloo sometimes aborts a rank that leaves."""
    lines = ("Traceback (most recent call last):", "    assert loss < most", "AssertionError")
    found = diagnose([Sign("Signal 6 (SIGABRT) (exit -6)", "logs/", "rank 0", 1.0, lines)])
    assert found is not None
    assert (found.cause.name, found.evidence) == ("raised", "AssertionError")


@pytest.mark.parametrize(
    ("ended", "lines"),
    [
        ("ended with its own code 1", CLOSED),
        ("Signal 6 (SIGABRT)", CLOSED),
        ("lost a peer: RuntimeError: Connection reset by peer", ("trainer: preflight, 1.0 s",)),
    ],
)
def test_a_rank_that_lost_one_that_had_left_is_not_the_cause_however_it_ended(
    ended: str, lines: tuple[str, ...]
) -> None:
    """gloo may abort a rank that has raised, while Python shuts down."""
    sign = Sign(f"{ended}, after rank 1 had ended with 0", "logs/", "rank 0", 1.0, lines)
    found = diagnose([sign])
    assert found is not None
    assert found.cause.name == "left early"
    assert in_words(found, job="job")[0].startswith("first     rank 1")


def test_a_rank_that_failed_by_itself_after_another_had_left_is_the_cause() -> None:
    own = (*CLOSED[:-1], "ValueError: fold 7 of 5")
    sign = Sign("Signal 6 (SIGABRT), after rank 1 had ended with 0", "logs/", "rank 0", 1.0, own)
    found = diagnose([sign])
    assert found is not None
    assert found.cause.name == "raised"
    assert "fold 7 of 5" in found.evidence
