"""Every row of the table of exit codes, with a real process."""

import signal
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from tests.launch.test_nodes import node
from tests.ranks import free_port
from trainer.config.exits import MEANINGS, Exit

ENDLESS = {"TRAINER_STEPS": "1000000"}
EXPLODING = {"TRAINER_LR": "1e30", "TRAINER_CLIP_NORM": "0", "TRAINER_WARMUP_STEPS": "0"}

# The code, its cause, and a part of the message.
TABLE: list[tuple[Exit, dict[str, str], str]] = [
    (Exit.DONE, {}, ""),
    (Exit.CONFIG, {"TRAINER_MODE": "dpd"}, "TRAINER_MODE='dpd': no such mode"),
    (Exit.DATA, {"TRAINER_RESUME": "no/such/checkpoint"}, "no/such/checkpoint"),
    (Exit.PEER, {"TRAINER_RENDEZVOUS_TIMEOUT": "1"}, "could not join the master, node 0"),
    (
        Exit.CODE,
        {"TRAINER_TASK": "tests.faults.tasks:Greedy", "GREEDY": "python"},
        "out of memory (host)",
    ),
    (Exit.MACHINE, {"TRAINER_DEVICES": "99"}, "TRAINER_DEVICES=99 are planned"),
    (Exit.DIVERGED, EXPLODING, "try a smaller TRAINER_LR (now 1e+30)"),
    (Exit.STOPPED, ENDLESS, "stopped after step "),
]


def test_the_table_has_every_row() -> None:
    assert [code for code, _, _ in TABLE] == list(MEANINGS)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "cause", "message"), TABLE, ids=[row[0].name for row in TABLE])
def test_it_ends_with_the_code_and_the_reason(
    code: Exit, cause: dict[str, str], message: str, start: Any
) -> None:
    alone = code is not Exit.PEER  # with a second node that never joins
    place = {} if alone else node(1, free_port())
    process = start(
        "-m",
        "trainer" if alone else "trainer.launch",
        **(QUICK | place | {"PYTHONPATH": str(ROOT)} | cause),
    )
    if code is Exit.STOPPED:
        process.wait_for('"step": 5,')
        process.process.send_signal(signal.SIGTERM)
    ended = process.end()
    assert ended.code == code, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_task_that_exits_ends_with_a_code_of_the_table_and_an_event(start: Any) -> None:
    task = {"TRAINER_TASK": "tests.faults.tasks:Exiting", "TRAINER_STEPS": "20"}
    ended = start("-m", "trainer", **(QUICK | task | {"PYTHONPATH": str(ROOT)})).end()
    assert ended.code == Exit.CODE
    assert "SystemExit: 3" in ended.of("error")[-1]["message"]
