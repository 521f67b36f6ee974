"""Preflight finds and names every planted fault of a machine or link before the first step."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import QUICK
from tests.launch.test_nodes import node
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import free_port, run_ranks
from trainer.preflight import machine
from trainer.preflight.links import find_faulty
from trainer.watch.cgroup import available_memory

SYNTHETIC = {"task": "synthetic", "steps": "2"}


def corrupt(operation: str) -> None:
    """Make rank 1 send wrong numbers in every large message."""
    whole = getattr(dist, operation)

    def corrupted(first: Any, *arguments: Any, **named: Any) -> Any:
        if os.environ["RANK"] == "1":
            outgoing = first[0].tensor if operation == "batch_isend_irecv" else first
            if outgoing.numel() > 1000:
                outgoing.view(-1)[-1] += 1
        return whole(first, *arguments, **named)

    setattr(dist, operation, corrupted)


def error_of(events: list[dict[str, Any]]) -> str:
    assert [event["event"] for event in events] == ["error"], events
    return str(events[0]["message"])


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["all_reduce", "batch_isend_irecv"])
def test_a_rank_that_corrupts_what_it_sends_is_named(operation: str, tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, partial(corrupt, operation), code=71, **SYNTHETIC)
    assert "rank 1: all-reduce: its numbers arrive wrong at ranks 0" in error_of(events)


CASES: list[tuple[dict[str, str], str]] = [
    ({"devices": "99"}, "TRAINER_DEVICES=99 are planned"),
    (
        {"task": "tests.faults.tasks:Wide", "workers": "1"},
        "raise resources.shm, or lower TRAINER_W",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "message"), CASES)
def test_a_missing_resource_is_71(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    events = run_ranks(1, tmp_path, code=71, **(SYNTHETIC | settings))
    assert message in error_of(events)


@pytest.mark.slow
def test_a_full_disk_is_71(tiny_disk: Path) -> None:
    message = error_of(run_ranks(1, tiny_disk, code=71, **SYNTHETIC))
    assert f"1 MiB free in {tiny_disk}; at least 64 MiB needed" in message


@pytest.mark.slow
def test_a_run_folder_that_cannot_be_written_is_71(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variables = {"TRAINER_TASK": "synthetic", "TRAINER_OUT": str(tmp_path / "file")}
    with lend(1, fresh=True) as ranks:
        (ending,) = carry_out(Case(variables), ranks, timeout=60)
    assert ending.code == 71
    assert "set a TRAINER_OUT that can be written" in ending.stderr


@pytest.mark.slow
def test_the_unfit_node_ends_with_71_and_its_peer_with_69(start: Any) -> None:
    port = free_port()
    fit = start("-m", "trainer.launch", **node(0, port), **QUICK)
    unfit = start("-m", "trainer.launch", **node(1, port), **QUICK, TRAINER_DEVICES="99")
    assert (unfit.end().code, fit.end().code) == (71, 69)
    for ended in (unfit.end(), fit.end()):
        assert "rank 1: devices: " in ended.stderr
        assert ended.of("launch") == []


@pytest.mark.slow
def test_alone_it_prints_its_table_once_and_takes_under_five_seconds(
    start: Any, tmp_path: Path
) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trainer.preflight")
    ended = start(*torchrun, PET_MASTER_PORT=str(free_port()), TRAINER_PREFLIGHT="off").end()
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("preflight, ") == 1
    for row in ("devices", "host memory", "shared memory", "disk", "all-reduce", "slowest link"):
        assert f"\n  {row} " in ended.stderr
    launch = run_ranks(2, tmp_path, **SYNTHETIC)[0]
    assert 0 < launch["preflight"]["seconds"] < 5
    assert run_ranks(1, tmp_path / "off", preflight="off", **SYNTHETIC)[0]["preflight"] == {}


@given(st.integers(3, 9), st.data())
def test_a_rank_that_sends_or_receives_wrong_numbers_is_found(
    world: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, world - 1))
    sends_wrong = [[culprit] for _ in range(world)]
    assert find_faulty(sends_wrong) == {culprit}
    others = [rank for rank in range(world) if rank != culprit]
    receives_wrong = [others if rank == culprit else [] for rank in range(world)]
    assert find_faulty(receives_wrong) == {culprit}
    assert find_faulty([[] for _ in range(world)]) == set()


def test_too_little_memory_is_wrong_and_names_the_key_to_raise() -> None:
    assert "raise resources.memory" in str(machine.host_memory(2**60).wrong)
    assert machine.host_memory(0).wrong is None


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8000 * 1024), ("3000000", 3000000 - 1000000 + 400000)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_cgroup_bounds_the_memory_that_is_left(
    version: int, limit: str, expected: int, tmp_path: Path
) -> None:
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    most, used, cache = names.get(version, ("memory.max", "memory.current", "inactive_file"))
    folder = tmp_path / "memory" if version == 1 else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / most).write_text(limit)
    (folder / used).write_text("1000000")
    (folder / "memory.stat").write_text(f"anon 1\n{cache} 400000\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert available_memory(tmp_path, tmp_path / "meminfo") == expected


class NoSupportError(Exception):
    pass


def gpu(errors: int, remapping_failed: int, reasons: int) -> Any:
    """Return a fake NVML, because the machine may have no GPU."""

    def rows(_: object) -> tuple[int, int, int, int]:
        if remapping_failed < 0:
            raise NoSupportError
        return (0, 0, 0, remapping_failed)

    return SimpleNamespace(
        NVMLError=NoSupportError,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlDeviceGetTotalEccErrors=lambda *_: errors,
        nvmlDeviceGetRemappedRows=rows,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: reasons,
    )


@pytest.mark.parametrize(
    ("nvml", "wrong", "odd", "seen"),
    [
        (gpu(0, 0, 0x1), False, False, "clock: free"),
        (gpu(3, 0, 0), True, False, "3 uncorrected ECC errors"),
        (gpu(0, 1, 0), True, False, "0 uncorrected"),
        (gpu(0, -1, 0x48), False, True, "hardware slowdown, overheated"),
    ],
)
def test_a_gpu_with_memory_errors_is_wrong_and_a_slowed_one_is_odd(
    nvml: Any, wrong: object, odd: object, seen: str
) -> None:
    judge: Callable[..., machine.Finding] = machine._health  # noqa: SLF001
    finding = judge(nvml, object(), torch.device("cuda", 0))
    assert (finding.wrong is not None, finding.odd) == (wrong, odd)
    assert seen in finding.seen
