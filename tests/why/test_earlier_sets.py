"""The first five held-out sets: faults that the table of causes was not written for.

`make test` starts one script for each cause that no other test has; `make test-why` starts all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, Started
from tests.why.choice import chosen
from tests.why.scripts import SCRIPTS
from tests.why.sets.fifth_set import FIFTH_SET
from tests.why.sets.fourth_set import FOURTH_SET
from tests.why.sets.held_out import HELD_OUT
from tests.why.sets.second_set import IN_SILENCE, SECOND_SET
from tests.why.sets.third_set import THIRD_SET
from tests.why.test_run_folder import RUNS, ends_with, told

pytestmark = pytest.mark.slow

ON_RANK_1 = HELD_OUT | SECOND_SET | THIRD_SET
SCRIPTS_OF_TWO_RANKS = FOURTH_SET | FIFTH_SET
RIGHT = {name: causes for name, (causes, _) in ON_RANK_1.items()} | {
    name: whole.causes for name, whole in SCRIPTS_OF_TWO_RANKS.items()
}
TESTED = {*SCRIPTS, *(cause for cause, *_ in RUNS.values())}
CHOSEN = chosen(RIGHT, tested=TESTED)


def of_two_ranks(
    folder: Path, files: Mapping[str, str], command: Sequence[str] = (), **variables: str
) -> dict[str, str]:
    """Run a command, train.py if it is empty, on two ranks in a folder with these files; see `told`."""
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    own = {"TRAINER_OUT": "run", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    arguments = ("--nproc-per-node", "2", *(command or ("train.py",)))
    started = Started(folder, "-m", "trainer.launch", *arguments, env=own)
    try:
        assert started.process.wait(120) != 0
    finally:
        started.clear()
    return told(folder / "run")


@pytest.mark.parametrize("name", [name for name in CHOSEN if name in ON_RANK_1])
def test_a_fault_on_rank_1(name: str, tmp_path: Path) -> None:
    causes, failing = ON_RANK_1[name]
    found = of_two_ranks(tmp_path, {"train.py": failing.text})
    assert found["cause"].rpartition("(")[2].rstrip(")") in causes, found
    assert found["first"].startswith("rank 1 "), found
    assert failing.evidence in found["evidence"], found


@pytest.mark.parametrize("name", IN_SILENCE)
def test_a_rank_that_is_at_fault_without_an_error(name: str, tmp_path: Path) -> None:
    cause, who, source = IN_SILENCE[name]
    ends_with(of_two_ranks(tmp_path, {"train.py": source}), cause, who, "")


@pytest.mark.parametrize("name", [name for name in CHOSEN if name in SCRIPTS_OF_TWO_RANKS])
def test_a_whole_script(name: str, tmp_path: Path) -> None:
    whole = SCRIPTS_OF_TWO_RANKS[name]
    files = {"train.py": whole.text, **whole.files}
    found = of_two_ranks(tmp_path, files, whole.command, **whole.variables)
    assert found["cause"].rpartition("(")[2].rstrip(")") in whole.causes, found
    assert found["first"].startswith(whole.who), found
    assert whole.evidence in found["evidence"], found
