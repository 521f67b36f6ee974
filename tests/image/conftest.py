"""The image, built once for all tests and workers of a session, and removed after the last of them."""

import fcntl
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.image.image import Builder, Image, remove, why_not


@dataclass(frozen=True)
class Built:
    """The image of this tree, and the image of a tree that differs by one line of code."""

    image: Image
    changed: Image


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / "image.pickle"  # the images, and how many workers use them
    with _alone(folder / "image.lock"):
        images, users = pickle.loads(kept.read_bytes()) if kept.exists() else (None, 0)  # noqa: S301
        if images is None:
            images = _build(folder)
        kept.write_bytes(pickle.dumps((images, users + 1)))
    yield images
    with _alone(folder / "image.lock"):
        images, users = pickle.loads(kept.read_bytes())  # noqa: S301
        kept.write_bytes(pickle.dumps((images, users - 1)))
        if users == 1:
            kept.unlink()
            remove(folder / "image")


def _build(folder: Path) -> Built:
    try:
        builder = Builder(folder / "image")
        source = folder / "image/source"
        for name in ("docker", "trainer"):
            shutil.copytree(ROOT / name, source / name)
        shutil.copy(ROOT / ".dockerignore", source)
        image = builder.build(source)
        with (source / "trainer/__init__.py").open("a") as file:
            file.write("\nCHANGED = True\n")
        return Built(image, builder.build(source, revision="f" * 40))
    except BaseException:
        remove(folder / "image")
        raise


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
