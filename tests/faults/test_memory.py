"""Out of memory: reported by the rank, or by the launcher when the kernel killed the rank."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from tests.faults.tasks import planted
from tests.ranks import run_ranks
from trainer.watch.cgroup import explain_sigkill, oom_kills

pytestmark = pytest.mark.slow

GREEDY = {"task": "tests.faults.tasks:Greedy", "steps": "5", "micro_batch": "8"}


@pytest.mark.parametrize(
    ("greed", "text"), [("torch", "can't allocate memory"), ("python", "MemoryError")]
)
def test_more_than_the_host_has_is_70_with_a_summary_and_advice(
    greed: str, text: str, tmp_path: Path
) -> None:
    events = run_ranks(1, tmp_path, planted(GREEDY=greed), code=70, **GREEDY)
    message = events[-1]["message"]
    assert message.startswith("out of memory (host): ")
    assert "try TRAINER_MICRO_BATCH=4 (now 8), more ranks with TRAINER_MODE=fsdp" in message
    summary = (tmp_path / "logs/rank-0.memory").read_text(encoding="utf-8")
    assert "peak of this process: " in summary
    assert "left in this container: " in summary
    assert text in summary
    assert "in loss" in summary


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup below this process's own, with memory for a launcher and a rank and a little more."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = {line.split(":")[1]: line.split(":")[2].strip("/") for line in lines}
    root = Path("/sys/fs/cgroup")
    parent = root / "memory" / own["memory"] if "memory" in own else root / own.get("", "")
    folder = parent / f"muster-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if "memory" in own else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(1400 * 2**20))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    with suppress(OSError):
        folder.rmdir()


INSIDE = "import os, runpy, sys; open(sys.argv[1], 'w').write(str(os.getpid())); del sys.argv[1]; "


def test_an_oom_kill_is_reported_as_such(small_cgroup: Path, start: Any) -> None:
    ended = start(
        "-c",
        INSIDE + "runpy.run_module('trainer.launch', run_name='__main__')",
        str(small_cgroup / "cgroup.procs"),
        **(QUICK | {"TRAINER_TASK": "tests.faults.tasks:Greedy", "GREEDY": "kernel"}),
        PET_NPROC_PER_NODE="2",
        PYTHONPATH=str(ROOT),
    ).end()
    assert ended.code == 70, ended.stderr
    assert "rank 1: Signal 9 (SIGKILL)" in ended.stderr
    assert "it was an OOM kill (cgroup memory.events): raise resources.memory" in ended.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("memory.events", "low 0\noom 4\noom_kill 3\n"),
    ],
)
def test_kills_are_read_from_either_cgroup(name: str, text: str, tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == 3


def test_without_a_count_of_oom_kills_dmesg_is_named() -> None:
    assert "dmesg" in explain_sigkill(None)
