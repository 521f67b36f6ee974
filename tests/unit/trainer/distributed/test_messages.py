"""Messages of a rank in the group are read as data: our JSON, and torch's own plans."""

import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import WriteItemType

from tests.conftest import ROOT, clean_environment
from tests.pool import free_port
from tests.ranks import run_ranks
from trainer.config.exits import Exit, Fault
from trainer.data.sets import UnreadableSample
from trainer.distributed.messages import from_all, from_main
from trainer.distributed.unpickling import Restricted, restrict
from trainer.tasks import synthetic


class Evil:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["TRACE"],)


def values(runtime: Any) -> None:
    rank = runtime.rank
    sample = UnreadableSample(rank, "ä/\x00", "x" * rank * 100_000)
    assert [one[0].index for one in from_all([sample], runtime, list[UnreadableSample])] == [0, 1]
    assert from_all((rank, "a"), runtime, tuple[int, str]) == [(0, "a"), (1, "a")]
    assert from_all(None if rank else 1.5, runtime, float | None) == [1.5, None]
    assert from_all(float("inf"), runtime, float) == [float("inf")] * 2
    assert from_main(["b"] * (3 - rank), runtime, list[str]) == ["b"] * 3


def pickle_for_a_message(runtime: Any) -> None:
    """Send the same tensors as torch's collective of objects, with a pickle in them."""
    if runtime.rank:
        found: list[Any] = [None, None]
        dist.all_gather_object(found, Evil(), group=runtime.control)
    else:
        with pytest.raises(Fault, match="rank 1 sends a message that cannot be read") as caught:
            from_all("x", runtime, str)
        assert caught.value.code == Exit.CODE
        assert not Path(os.environ["TRACE"]).exists()


def wrong_type(runtime: Any) -> None:
    if runtime.rank:
        from_all({"index": [1]}, runtime, dict[str, list[int]])
    else:
        with pytest.raises(Fault, match="rank 1 sends a message that cannot be read"):
            from_all(3, runtime, int)


def absurd_size(runtime: Any) -> None:
    if runtime.rank:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(sizes, torch.tensor([1 << 50]), group=runtime.control)
    else:
        with pytest.raises(Fault, match="rank 1 sends a message of 1125899906842624 bytes"):
            from_all("x", runtime, str)


def pickle_for_a_plan(runtime: Any) -> None:
    """Send to rank 0 what DCP gathers, with a pickle that would run in it."""
    if not runtime.rank:
        restrict()
    found: list[Any] = [None, None]
    mine = Evil() if runtime.rank else "x"
    dist.gather_object(mine, found if not runtime.rank else None, dst=0, group=runtime.control)
    if not runtime.rank:
        assert type(found[1]).__name__ == "mkdir"
        assert isinstance(found[1], Exception)
        assert not Path(os.environ["TRACE"]).exists()


CASES: list[Callable[[Any], None]] = [
    values,
    pickle_for_a_message,
    wrong_type,
    absurd_size,
    pickle_for_a_plan,
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_of_two_ranks(case: Callable[[Any], None], tmp_path: Path) -> None:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, case.__name__, str(rank), str(port)],
            cwd=ROOT,
            env=clean_environment(TRACE=str(tmp_path / "trace"), OMP_NUM_THREADS="1"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert ranks[0].returncode == 0, errors


class Restricting(synthetic.Task):
    def model(self) -> nn.Module:
        assert distributed_c10d._unpickler is Restricted  # noqa: SLF001
        return super().model()


@pytest.mark.slow
def test_a_run_restricts_torch(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, task=f"{__name__}:Restricting", mode="ddp", steps="1")


def test_no_other_file_unpickles() -> None:
    asks = re.compile(r"pickle\.loads?\(|Unpickler|torch\.load\(|_object(_list)?\(")
    files = (ROOT / "trainer").rglob("*.py")
    found = {str(f.relative_to(ROOT)) for f in files if asks.search(f.read_text(encoding="utf-8"))}
    assert found == {
        "trainer/checkpoint/write.py",  # lookup_object and transform_object, of DCP's planner
        "trainer/data/shared.py",  # memory that a process of this machine made
        "trainer/data/stream.py",  # torch.load with weights_only
        "trainer/distributed/torch_private.py",
        "trainer/distributed/unpickling.py",
        "trainer/engine/initial.py",  # torch.load with weights_only
        "trainer/strategies/hogwild.py",
        "trainer/tasks/parts/cifar_files.py",
    }


def test_torch_unpickles_in_no_place_that_is_not_known() -> None:
    asks = re.compile(r"\bpickle\.loads?\(|\b_unpickler\(|\bUnpickler\(")
    folder = Path(dist.__file__).parent
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        if asks.search(file.read_text(encoding="utf-8"))
    }
    assert found == {
        "distributed_c10d.py",  # the collectives of objects: `restrict` replaces its unpickler
        # The trainer uses none of these.
        "_tools/memory_tracker.py",
        "checkpoint/_pg_transport.py",
        "checkpoint/filesystem.py",
        "elastic/rendezvous/dynamic_rendezvous.py",
        "flight_recorder/components/loader.py",
        "rpc/internal.py",
    }
    names = (
        r"memory_tracker|PGTransport|FileSystemReader|DynamicRendezvous|distributed\.(flight|rpc)"
    )
    files = (ROOT / "trainer").rglob("*.py")
    assert not [one for one in files if re.search(names, one.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "value",
    [
        OSError(28, "full"),
        Fault(Exit.DATA, "x"),
        CheckpointException("write", {1: (OSError(28, "full"), StackSummary())}),
        {"a": [1, (2.5, None)]},
        torch.Size([2]),
        torch.float16,
    ],
)
def test_plain_data_and_exceptions_arrive_as_they_are(value: Any) -> None:
    copied = Restricted(io.BytesIO(pickle.dumps(value))).load()
    assert (type(copied), str(copied)) == (type(value), str(value))


def by_getattr(of: str, name: str) -> bytes:
    """Pickle a call of getattr, as Python 3.11.2 does for a member of an enumeration."""
    return f"cbuiltins\ngetattr\n(c{of}\nV{name}\ntR.".encode()


def test_a_member_of_an_enumeration_arrives_from_each_version_of_python() -> None:
    """Debian's Python 3.11.2, which the image's base may have, pickles it by name."""
    data = by_getattr("torch.distributed.checkpoint.planner\nWriteItemType", "SHARD")
    assert Restricted(io.BytesIO(data)).load() is WriteItemType.SHARD


@pytest.mark.parametrize("of", ["builtins\nException", "torch\nSize"])
def test_getattr_of_anything_else_is_refused(of: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="no enumeration"):
        Restricted(io.BytesIO(by_getattr(of, "__init__"))).load()


def main(name: str, rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=30))
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    group = dist.new_group(backend="gloo")
    runtime = SimpleNamespace(rank=rank, is_main=rank == 0, world_size=2, control=group)
    {case.__name__: case for case in CASES}[name](runtime)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
