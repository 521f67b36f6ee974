"""Changed code on running nodes: all nodes take it together, without a counted restart."""

import gzip
import hashlib
import io
import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment
from tests.launch.test_nodes import node
from tests.ranks import free_port
from trainer.config.exits import Exit, Fault
from trainer.launcher.program import code_sync
from trainer.launcher.program.code_archive import BESIDE, unpack

# Rank 1 loses rank 0 as soon as that ends, and fails with it.
TALKS = """
import os, socket, time
from value import VALUE
rank, place = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
open(f"written-by-{rank}", "w").close()
if rank == "0":
    other, _ = socket.create_server(place).accept()
else:
    while True:
        try:
            other = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
print(f"rank {rank} has {VALUE}", flush=True)
if not other.recv(1):
    raise ConnectionError("lost the other rank")
"""


def archive(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as found:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)  # from 1970, like all files that travel
            entry.size, entry.mode = len(text), 0o644
            found.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(made.getvalue(), mtime=0)


def carried(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a pod that carries these files; its folder is made."""
    folder.mkdir(exist_ok=True)
    file, content = folder / "code.tar.gz", archive(files)
    file.write_bytes(content)
    return {
        "MUSTER_CODE": str(file),
        "MUSTER_CODE_SHA256": hashlib.sha256(content).hexdigest(),
        "MUSTER_CODE_FOLDER": str(folder / "code"),
    }


def step(variables: Mapping[str, str], *words: str, stdin: bytes = b"") -> tuple[int, str]:
    """Run one of the steps as in a pod."""
    ran = subprocess.run(
        [sys.executable, "-m", "trainer.launcher.program.code_sync", *words],
        cwd=ROOT,
        env=clean_environment(**variables),
        input=stdin,
        stdout=subprocess.PIPE,
        check=False,
    )
    return ran.returncode, ran.stdout.decode().strip()


def put(variables: Mapping[str, str], files: Mapping[str, str], **wrong: str) -> tuple[int, str]:
    content = archive(files)
    sha256 = wrong.get("sha256", hashlib.sha256(content).hexdigest())
    return step(variables, "put", str(len(content)), sha256, "c0ffee", stdin=content)


@pytest.mark.slow
def test_all_nodes_take_it_together_and_no_restart_is_counted(start: Any, tmp_path: Path) -> None:
    """One node restarts, and the other node's rank fails; a counted restart would end the job."""
    port = free_port()
    before = {"train.py": TALKS, "value.py": "VALUE = 1", "old.py": ""}
    nodes = [
        carried(tmp_path / name, before)
        | node(number, port, TRAINER_OUT=str(tmp_path / name / "out"), PET_MAX_RESTARTS="0")
        | {"PYTHONDONTWRITEBYTECODE": ""}
        for number, name in enumerate(("first", "second"))
    ]
    started = [start("-m", "trainer.launch", "train.py", **variables) for variables in nodes]
    for rank, launcher in enumerate(started):
        launcher.wait_for(f"rank {rank} has 1")
    after = {"train.py": TALKS, "value.py": "VALUE = 2", "new/module.py": ""}
    for variables in nodes:
        assert put(variables, before) == (0, "same")
        assert put(variables, after) == (0, "put")
    for variables in nodes:
        assert step(variables, "commit") == (0, "")
    assert step(nodes[0], "restart", "60") == (0, "taken")
    for rank, launcher in enumerate(started):
        launcher.wait_for(f"rank {rank} has 2")  # as long as the old one, but not mistaken for it
        folder = Path(nodes[rank]["MUSTER_CODE_FOLDER"])
        files = {path.name for path in folder.iterdir()} - {"__pycache__"}
        assert files == {BESIDE, "train.py", "value.py", "new", f"written-by-{rank}"}
        assert put(nodes[rank], after) == (0, "same")
    started[0].process.send_signal(signal.SIGTERM)
    for launcher in started:
        launcher.process.wait(timeout=60)
        assert "restarting the ranks" not in launcher.read(launcher.stderr)
    lines = (tmp_path / "first/out/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    *_, launch = [one for one in map(json.loads, lines) if one["event"] == "launch"]
    assert launch["code_sha256"] == hashlib.sha256(archive(after)).hexdigest()
    assert launch["code_commit"] == "c0ffee"


def test_what_is_wrong_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    variables = carried(tmp_path, {"train.py": "1", "folder/file": "1"})
    folder = unpack(variables)
    code, text = put(variables, {"train.py": "2"}, sha256="0" * 64)
    assert (code, "came with the hash" in text) == (65, True)
    code, text = put(variables, {"other.py": "2"})
    assert (code, "has no file of the code that runs" in text) == (64, True)
    assert step(variables, "commit")[0] == 71  # nothing to commit
    assert step(variables, "reboot")[0] == 64
    assert not code_sync.is_due(variables, failed=True)
    code_sync.take(variables)
    assert (folder / "train.py").read_text() == "1"
    # A file in the place of a folder, and a file that cannot be written there.
    assert put(variables, {"train.py": "2", "folder": "now a file"}) == (0, "put")
    assert step(variables, "commit")[0] == 0
    assert code_sync.is_due(variables, failed=True)
    assert not code_sync.is_due(variables, failed=False)
    assert step(variables, "restart", "0") == (0, "asked")
    assert code_sync.is_due(variables, failed=False)
    code_sync.take(variables)
    assert ((folder / "folder").read_text(), (folder / "train.py").read_text()) == (
        "now a file",
        "2",
    )
    (folder / "new").touch()
    assert put(variables, {"train.py": "3", "new/file": ""}) == (0, "put")
    assert step(variables, "commit")[0] == 0
    with pytest.raises(Fault, match="the new code cannot be put there") as raised:
        code_sync.take(variables)
    assert raised.value.code == Exit.MACHINE


def test_a_new_container_begins_with_the_code_of_its_manifest(tmp_path: Path) -> None:
    variables = carried(tmp_path, {"train.py": "1"})
    unpack(variables)
    assert put(variables, {"train.py": "2"}) == (0, "put")
    assert step(variables, "commit")[0] == 0
    folder = unpack(variables)
    assert not code_sync.is_due(variables, failed=True)
    assert (folder / "train.py").read_text() == "1"


def test_a_job_without_code_has_nothing_to_take() -> None:
    variables: dict[str, str] = {}
    code_sync.take(variables)
    assert not code_sync.is_due(variables, failed=True)
    assert variables == {}
