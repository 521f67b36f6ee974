"""docker/install.sh with an index on this machine: its downloads have the hash of the index."""

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT


def publish(name: str, folder: Path, digest: str | None) -> None:
    """Put an empty package into an index, with its hash or with another."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        about = f"{name}-1.0.dist-info"
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    shown = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = folder / name / "index.html"
    page.parent.mkdir()
    page.write_text(f'<a href="/{wheel.name}#sha256={shown}">{wheel.name}</a>')


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [None, "torch", "torchvision"])
def test_torch_for_cpus_has_the_hash_that_its_index_gives(
    wrong: str | None, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for name in ("torch", "torchvision"):
        publish(name, index, "0" * 64 if name == wrong else None)
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "torch==1.0 \\\n    --hash=sha256:1\ntorchvision==1.0 \\\n    --hash=sha256:1\n"
    )
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(index))
    )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    # uv, but PyTorch's index is that of this test.
    uv = tmp_path / "uv"
    there = f"--default-index http://127.0.0.1:{server.server_port}"
    uv.write_text(
        f'#!/bin/sh\nset -- $(echo "$@" | sed "s#--torch-backend cpu#{there}#")\n'
        f'exec "{sys.executable}" -m uv "$@"\n'
    )
    uv.chmod(0o755)
    subprocess.run([uv, "venv", "--quiet", str(tmp_path / "venv")], check=True)
    done = subprocess.run(
        [ROOT / "docker/install.sh", tmp_path / "venv/bin/python", lock, "cpu"],
        env={"PATH": os.environ["PATH"], "UV": str(uv), "UV_NO_CACHE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    server.shutdown()
    server.server_close()
    installed = sorted(path.name for path in (tmp_path / "venv").rglob("*-1.0.dist-info"))
    if wrong is None:
        assert done.returncode == 0, done.stderr
        assert installed == ["torch-1.0.dist-info", "torchvision-1.0.dist-info"]
    else:
        assert done.returncode != 0
        assert f"Hash mismatch for `{wrong}==1.0`" in done.stderr
        assert installed == []
