"""`python -m trainer.why RUN`: faults made for real, the first cause named and not its victim."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from tests.faults.test_bad_samples import ALL_AT_ONCE, pictures, spoil
from tests.launch.test_commands import launch
from tests.launch.test_nodes import node
from tests.ranks import free_port
from tests.why.scripts import SCRIPTS
from trainer.report.history import read
from trainer.why import why

__all__ = ["pictures"]

pytestmark = pytest.mark.slow

TASKS = "tests.faults.tasks:"


def told(run: Path) -> dict[str, str]:
    """Return the lines about a run by their first word; the head as `head`."""
    head, *lines = why(read(run))
    assert len(lines) < 10
    return {"head": head} | dict(line.split(maxsplit=1) for line in reversed(lines))


def ends_with(found: dict[str, str], cause: str, who: str, evidence: str) -> None:
    assert found["cause"].endswith(f"({cause})"), found
    assert found["first"].startswith(who), found
    assert evidence in found["evidence"], found
    assert len(found["do"]) > 10


@pytest.mark.parametrize("cause", SCRIPTS)
def test_a_script_that_fails_on_one_rank(cause: str, start: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[cause].text, encoding="utf-8")
    command = ("--nproc-per-node", "2", str(script), *SCRIPTS[cause].arguments)
    code, _, error = launch(start, *command, TRAINER_OUT=str(tmp_path / "run"))
    assert code != 0
    ends_with(told(tmp_path / "run"), cause, "rank 1 ", SCRIPTS[cause].evidence)


DDP = """
import torch.distributed as dist

def label(name):
    return {"cat": 0, "dog": 1}[name]

dist.init_process_group("gloo")
if dist.get_rank() == 2:
    label("horse")
dist.barrier()
"""


def test_a_script_of_several_ranks_that_wait_for_the_one_that_failed(
    start: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP, encoding="utf-8")
    launch(start, "--nproc-per-node", "3", str(script), TRAINER_OUT=str(tmp_path / "run"))
    found = told(tmp_path / "run")
    ends_with(found, "raised", "rank 2 ", "KeyError: 'horse'")
    assert found["at"] == f'{script}, line 5, in label: return {{"cat": 0, "dog": 1}}[name]'
    assert found.get("then", "lost peer").startswith("lost peer")


def test_a_warning_before_the_error_is_not_its_cause(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    warning = "import sys\nprint('/root/.cache: Permission denied, so no cache', file=sys.stderr)\n"
    script.write_text(f"{warning}raise ValueError('fold 7 of 5')", encoding="utf-8")
    launch(start, str(script), TRAINER_OUT=str(tmp_path / "run"))
    ends_with(told(tmp_path / "run"), "raised", "", "fold 7 of 5")


def test_a_script_that_is_not_there(start: Any, tmp_path: Path) -> None:
    launch(start, "--", sys.executable, "trian.py", TRAINER_OUT=str(tmp_path / "run"))
    ends_with(told(tmp_path / "run"), "no script", "rank 0 ", "can't open file")


def test_ranks_that_hang(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time\ntime.sleep(600)", encoding="utf-8")
    wait = {"MUSTER_STALL": "3", "TRAINER_OUT": str(tmp_path / "run")}
    launch(start, "--nproc-per-node", "2", str(script), **wait)
    ends_with(told(tmp_path / "run"), "hang", "launcher", "no output and no processor time")


# By a name: the cause, who is first, a part of the evidence, and the settings that make it.
RUNS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "raises on one rank": ("raised", "rank 1 ", "enough of it", {"TASK": f"{TASKS}Lingering"}),
    "host memory": (
        "host memory",
        "rank 1 ",
        "out of memory (host)",
        {"TASK": f"{TASKS}Greedy", "GREEDY": "python"},
    ),
    "no data": ("data", "rank ", "/no/such/folder", {"TASK": "cifar10", "DATA": "/no/such/folder"}),
    "no checkpoint": ("checkpoint", "rank ", "no/such/step", {"RESUME": "no/such/step"}),
    "exploding": (
        "diverged",
        "rank ",
        "was not finite",
        {"LR": "1e30", "CLIP_NORM": "0", "WARMUP_STEPS": "0"},
    ),
    "nan in data": (
        "diverged",
        "rank ",
        "was not finite",
        {"TASK": f"{TASKS}Poisoned", "POISONED": "1,2,3,4,5,6,7,8,9,10,11,12"},
    ),
    "too few devices": ("no devices", "rank ", "are planned", {"DEVICES": "99"}),
    "a hang in the loss": (
        "hang",
        "rank 1",
        "not in the collective: rank 1",
        {"TASK": f"{TASKS}Stuck", "STUCK": "1", "STEPS": "100", "COLLECTIVE_TIMEOUT": "4"},
    ),
    "a rank that never comes": (
        "hang",
        "rank 1",
        "did not join within",
        {"TASK": f"{TASKS}Stuck", "STUCK": "1", "HOW": "loading", "COLLECTIVE_TIMEOUT": "4"},
    ),
    "a rank that is killed": (
        "killed",
        "rank 1 ",
        "Signal 9 (SIGKILL)",
        {"TASK": f"{TASKS}Stuck", "STUCK": "1", "HOW": "killed", "STEPS": "100"},
    ),
}
_OWN = ("GREEDY", "POISONED", "STUCK", "HOW")  # variables of the tasks of tests/faults


def variables(run: Path, settings: dict[str, str]) -> dict[str, str]:
    named = {name if name in _OWN else f"TRAINER_{name}": value for name, value in settings.items()}
    place = {"TRAINER_OUT": str(run), "PET_NPROC_PER_NODE": "2", "PYTHONPATH": str(ROOT)}
    return QUICK | place | named


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_trainer_that_fails(name: str, start: Any, tmp_path: Path) -> None:
    cause, who, evidence, settings = RUNS[name]
    run = tmp_path / "run"
    ended = start("-m", "trainer.launch", **variables(run, settings)).end()
    assert ended.code != 0
    ends_with(told(run), cause, who, evidence)


def test_bad_samples(start: Any, pictures: Path, tmp_path: Path) -> None:
    path = spoil(pictures, "train")
    settings = {name.upper(): value for name, value in ALL_AT_ONCE.items()}
    run = tmp_path / "run"
    start("-m", "trainer.launch", **variables(run, settings | {"DATA": str(pictures)})).end()
    ends_with(told(run), "bad samples", "rank ", Path(path).name)


def test_a_run_folder_of_other_settings(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start("-m", "trainer.launch", **variables(run, {"CHECKPOINT_STEPS": "4"})).end()
    start("-m", "trainer.launch", **variables(run, {"LR": "0.5"})).end()
    found = told(run)
    ends_with(found, "another run's folder", "rank ", "TRAINER_LR")
    assert "attempt 2" not in found.get("before", "")


def test_a_rank_that_is_stopped_from_outside(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = {"STEPS": "100000", "COLLECTIVE_TIMEOUT": "4"}
    started = start("-m", "trainer.launch", **variables(run, long))
    started.wait_for('"step": 5,')
    started.ranks()[1].suspend()
    started.end(timeout=60)
    ends_with(told(run), "hang", "rank 1", "no sign of life from rank 1")


def test_a_job_that_is_stopped(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = start("-m", "trainer.launch", **variables(run, {"STEPS": "100000"}))
    started.wait_for('"step": 5,')
    started.process.send_signal(signal.SIGTERM)
    assert started.end(timeout=60).code == 143
    found = told(run)
    assert found["head"].startswith("run stopped: ")
    assert found["cause"].endswith("(stopped)")
    assert "goes on from its newest checkpoint" in found["do"]


def test_the_failing_node_is_named_and_not_the_one_that_lost_it(start: Any, tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    own = {"PYTHONPATH": str(ROOT), "TRAINER_OUT": str(run), "TRAINER_TASK": f"{TASKS}Lingering"}
    both = [
        start("-m", "trainer.launch", **(QUICK | node(rank, port) | own | {"TRAINER_STEPS": "100"}))
        for rank in (0, 1)
    ]
    assert sorted(one.end().code for one in both) == [69, 70]
    found = told(run)
    ends_with(found, "raised", "rank 1 ", "enough of it")
    assert ", in loss: " in found["at"]


def test_a_node_that_never_comes(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    alone = node(1, free_port()) | {"TRAINER_RENDEZVOUS_TIMEOUT": "2", "TRAINER_OUT": str(run)}
    start("-m", "trainer.launch", **(QUICK | alone)).end()
    ends_with(told(run), "rendezvous", "launcher", "could not join the master")


def test_restarts_in_place_are_counted_with_their_causes(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = {"PET_MAX_RESTARTS": "2"}
    settings = variables(run, {"TASK": f"{TASKS}Stuck", "STUCK": "1", "HOW": "killed"}) | more
    start("-m", "trainer.launch", **(settings | {"TRAINER_STEPS": "100"})).end()
    found = told(run)
    ends_with(found, "killed", "rank 1 ", "Signal 9")
    assert found["before"].startswith("attempts 1, 2: killed: rank 1 ")


# Programs that run one after another in one folder: what is said of the last, and of those before.
MISSING, RAISES, QUIET = "import nope", "raise KeyError('horse')", "raise SystemExit(3)"
IN_PLACE = (
    "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': import nope\nelse: exit(3)"
)
AFTER: dict[str, tuple[list[str], dict[str, str], str, str]] = {
    "without a word": ([MISSING, QUIET], {}, "own code 3", "package"),
    "another error": ([MISSING, RAISES], {}, "horse", "package"),
    "in place": ([IN_PLACE], {"PET_MAX_RESTARTS": "1"}, "own code 3", "package"),
    "finished": (["pass", QUIET], {}, "own code 3", "finished"),
    "alone": (
        [RAISES, RAISES],
        {"PET_NNODES": "2", "PET_NODE_RANK": "0", "TRAINER_RENDEZVOUS_TIMEOUT": "2"},
        "only 1 of 2 nodes",
        "raised",
    ),
}


@pytest.mark.parametrize("name", AFTER)
def test_nothing_is_said_of_an_attempt_that_another_wrote(
    name: str, start: Any, tmp_path: Path
) -> None:
    programs, last, evidence, before = AFTER[name]
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    for number, program in enumerate(programs, 1):
        given = place | (last if number == len(programs) else {})
        command = ("--", sys.executable, "-c", program)
        launch(start, *command, TRAINER_OUT=str(tmp_path / "run"), **given)
    found = told(tmp_path / "run")
    assert evidence in found["head"] + found["evidence"], found
    assert found["before"].startswith(f"attempt 1: {before}"), found
    assert "nope" not in str(found)
    assert ("horse" in str(found)) == (name == "another error"), found


def test_a_run_that_was_killed_whole_and_one_that_finished(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = start("-m", "trainer.launch", **variables(run, {"STEPS": "100000"}))
    started.wait_for('"step": 5,')
    family = started.family()
    for process in family:  # at once, so that none sees another's end
        process.suspend()
    for process in family:
        process.kill()
    started.process.wait()
    assert "no end is recorded" in told(run)["cause"]
    start("-m", "trainer.launch", **variables(tmp_path / "fine", {})).end()
    assert list(told(tmp_path / "fine")) == ["head"]
    assert told(tmp_path / "fine")["head"].startswith("fine finished: ")


def test_the_command_prints_it_and_refuses_a_folder_without_a_run(
    start: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start("-m", "trainer.launch", **variables(run, {})).end()
    process = start("-m", "trainer.why", str(run))
    process.process.wait(60)
    assert process.read(process.out).startswith("run finished: ")
    refused = start("-m", "trainer.why", str(tmp_path)).end()
    assert refused.code == 65
    assert "no event in metrics.jsonl" in refused.stderr
