"""A few mutated inputs for every target, harmful inputs of earlier runs, and the detection of harm."""

import random
import time
from pathlib import Path

import pytest

from tests.bounds import bounded
from tests.fuzz import __main__ as command
from tests.fuzz import targets
from tests.fuzz.harm import attempt, mutate
from tests.fuzz.targets import TARGETS, Target

FOUND = sorted((Path(__file__).parent / "found").glob("*.bin"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_mutations_do_no_harm(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "BATCH", 60)
    monkeypatch.setattr(command, "FOUND", tmp_path)
    assert command.fuzz(name, "0") == (60, "")


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_did_harm_once_does_so_no_more(file: Path, tmp_path: Path) -> None:
    target = TARGETS[file.stem.partition("-")[0].replace("_", " ")]
    target.seeds()  # starts what the target needs in this process, not in one that would leave it behind
    assert bounded(lambda: attempt(target, file.read_bytes(), tmp_path), seconds=10) == ""


def work(data: bytes, _: Path) -> None:
    while b"a" in data:
        pass


def wait(data: bytes, _: Path) -> None:
    while b"a" in data:
        time.sleep(1)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda *_: bytearray(400 << 20), "MemoryError"),
        (work, "SIGPROF"),
        pytest.param(wait, "SIGALRM", marks=pytest.mark.slow),
    ],
    ids=["error", "memory", "work", "wait"],
)
def test_harm_is_seen(
    run: targets.Run, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.fuzz.harm._SECONDS", 1)
    # work never counts as waiting, however busy the machine is
    monkeypatch.setattr("tests.fuzz.harm._WAITING", 2 if run is wait else 120)
    monkeypatch.setattr(command, "FOUND", tmp_path)
    monkeypatch.setitem(TARGETS, "planted", Target(lambda: [b"a" * 5000], run))
    done, problem = command.fuzz("planted", "0")
    assert done < command.BATCH
    assert problem.startswith(seen)
    assert len([*tmp_path.iterdir()]) == 1


def test_what_a_busy_machine_stretches_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.fuzz.harm._SECONDS", 0.5)
    slow = Target(list, lambda *_: time.sleep(1))
    assert bounded(lambda: attempt(slow, b"", tmp_path)) == ""


def test_mutations_are_those_of_the_seed() -> None:
    first, again = (
        [mutate([b"name: a\nnodes: 2"], random.Random(number)) for number in range(50)]  # noqa: S311
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 40
