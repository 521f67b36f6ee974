"""A data set in memory that a local rank offers to others: other memory is not unpickled."""

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config.exits import Exit, Fault
from trainer.data import shared
from trainer.data.sets import Tensors


def test_what_is_offered_is_what_is_mapped() -> None:
    data = Tensors(torch.arange(6.0).view(3, 2), torch.tensor([1, 0, 1]))
    offer, memory = shared._offer(data, "0")  # noqa: SLF001
    mapped = shared._map(offer)  # noqa: SLF001
    assert torch.equal(mapped.inputs, data.inputs)
    assert torch.equal(mapped.targets, data.targets)
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(memory, b"x", 0)
    os.close(memory)


def test_what_cannot_be_shared_is_the_data_or_what_it_set(caplog: pytest.LogCaptureFixture) -> None:
    data = Tensors(torch.zeros(3, 2), torch.zeros(3))
    offer, _ = shared._offer((data, {"scale": lambda: 1}), "0")  # noqa: SLF001
    assert offer.descriptor == -1
    assert (
        "because the data, or what data() has set in the task, cannot be pickled: " in caplog.text
    )


class Evil:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["TRACE"],)


def content() -> bytes:
    """Return the content of an offer's memory, with a pickle that runs code."""
    pickled = pickle.dumps(Evil())
    places = f"[[0, {len(pickled)}]]".encode()
    return pickled + places + len(pickled).to_bytes(8, "big")


def memory(name: str, seals: int) -> int:
    made = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.write(made, content())
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def file() -> int:
    """Return a file whose path looks like that of such memory."""
    path = Path("/memfd:muster-data")
    path.write_bytes(content())
    made = os.open(path, os.O_RDONLY)
    path.unlink()
    return made


NAME, SEALS = shared._NAME, shared._SEALS  # noqa: SLF001
FOREIGN: dict[str, Callable[[], int]] = {
    "of another name": lambda: memory("other", SEALS),
    "that may change": lambda: memory(NAME, 0),
    "a file": lambda: os.open(os.environ["FILE"], os.O_RDONLY),
    "a file of that name": file,
}


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("FILE", str(tmp_path / "file"))
    (tmp_path / "file").write_bytes(content())
    return tmp_path / "trace"


def refused(pid: int, descriptor: int) -> None:
    with pytest.raises(Fault, match="offered memory that is not this user's") as caught:
        shared._map(shared._Offer("0", pid, descriptor))  # noqa: SLF001
    assert caught.value.code == Exit.CODE


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_pickle_that_lies_anywhere_else_is_not_read(kind: str, trace: Path) -> None:
    if kind == "a file of that name" and not os.access("/", os.W_OK):
        pytest.skip("only root can write there")
    descriptor = FOREIGN[kind]()
    refused(os.getpid(), descriptor)
    os.close(descriptor)
    assert not trace.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_memory_of_another_user_is_not_read(trace: Path) -> None:
    made = memory(NAME, SEALS)
    script = f"import os, sys; sys.path[:0] = {sys.path!r}; from {__name__} import *\n"
    script += "os.setuid(65534); print(memory(NAME, SEALS), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        descriptor = int(other.stdout.readline())
        refused(other.pid, descriptor)
        other.communicate("\n", timeout=30)
    assert not trace.exists()
    shared._map(shared._Offer("0", os.getpid(), made))  # noqa: SLF001  # the same of this user
    assert trace.exists()
    os.close(made)
