"""What the tests of faults share."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory: a rank that waits for a disk, which other tests use, cannot be killed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # with a unique name
        yield Path(folder)
