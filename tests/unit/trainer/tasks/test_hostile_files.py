"""Data files that were made to do harm are refused with 65, within limits of memory and time."""

import gzip
import io
import os
import pickle
import random
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.bounds import bounded
from tests.unit.trainer.tasks.test_images import cifar
from trainer import tasks
from trainer.config.settings import Settings
from trainer.tasks.imagefolder import Folder
from trainer.tasks.parts import cifar_files

BATCH = "cifar-10-batches-py/data_batch_1"


def arrays(dtype: bytes, shape: bytes, elements: bytes) -> bytes:
    """Return a pickle of an array; `dtype`, its type, is a pickle without its end."""
    return (
        b"\x80\x02}q\x00(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01" + shape + dtype + b"\x89" + elements + b"tb"
        b"U\x06labels]K\x01au."
    )


def raw(content: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(content)) + content


BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
# A type of object pointers: the addresses would be the file's bytes.
OBJECTS = b"cnumpy\ndtype\nU\x01OK\x00K\x01\x87R"
FORGED = (
    b"cnumpy\ndtype\nU\x02V8K\x00K\x01\x87R(K\x03U\x01|NU\x01f\x85}U\x01f"
    + OBJECTS
    + b"K\x00\x86sK\x08K\x01K?tb"
)
ROW = b"K\x01M\x00\x0c\x86"  # (1, 3072)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (arrays(OBJECTS, ROW, raw(b"A" * 3072 * 8)), "its images are not bytes"),
        (arrays(FORGED, b"M\x80\x01\x85", raw(b"A" * 3072)), "its images are not bytes"),
        (arrays(BYTES, b"J\xff\xff\xff\x7fM\x00\x0c\x86", raw(b"A" * 3072)), "have the shape"),
        (arrays(BYTES, ROW, raw(b"A" * 3071)), "have the shape"),
        (arrays(BYTES, ROW, b"]"), "its images are not bytes"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "its memo index 2147483647 is too large"),
        (b"\x80\x02}p2147483647\n.", "its memo index 2147483647 is too large"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc", "cannot be read"),
        (b"(" * 100_000 + b"t" * 100_000 + b".", "cannot be read"),
        (b"\x80\x02cbuiltins\neval\n(U\x011tR.", "it refers to builtins.eval"),
        (b"\x80\x02cnumpy\nfromfile\n.", "it refers to numpy.fromfile"),
        (b"", "cannot be read"),
    ],
)
def test_a_forged_pickle_is_data_that_cannot_be_read(
    content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "data_batch_1"
    file.write_bytes(content)
    answer = bounded(partial(cifar_files.read, file))
    assert answer.startswith(f"65: {file}: ")
    assert words in answer


def test_the_form_of_the_forgeries_is_one_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1"
    file.write_bytes(arrays(BYTES, ROW, raw(bytes(range(256)) * 12)))
    images, labels = cifar_files.read(file)
    assert images.flatten()[:256].tolist() == list(range(256))
    assert labels.tolist() == [1]


@pytest.mark.slow
def test_no_mutation_of_a_pickle_does_harm(tmp_path: Path) -> None:
    """Of 319 processes that read such files as arrays of numpy, 47 crashed."""
    cifar(tmp_path, count=2)
    good = (tmp_path / BATCH).read_bytes()
    dice = random.Random(0)  # noqa: S311

    def mutations() -> None:
        for _ in range(3000):
            content = bytearray(good)
            for _ in range(dice.choice([1, 2, 4, 8])):
                # The structure is at both ends; between them are pixels.
                place = dice.choice([dice.randrange(160), -1 - dice.randrange(60)])
                content[place] = dice.randrange(256)
            (tmp_path / BATCH).write_bytes(content)
            answer = bounded_here(partial(cifar_files.read, tmp_path / BATCH))
            assert answer[:3] in ("", "65:"), (bytes(content[:160]), answer)

    assert bounded(mutations, seconds=60) == ""


def bounded_here(function: Callable[[], object]) -> str:
    from trainer.config.exits import Fault

    try:
        function()
    except Fault as fault:
        return f"{fault.code}: {fault}"
    return ""


def idx(*sizes: int, kind: int = 8, elements: bytes = b"") -> bytes:
    return bytes([0, 0, kind, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + elements


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\x08",
        b"\0\0\x08\x03",
        b"\0\0\x08\xff" + b"\xff" * 1020,
        idx(0, 28, 28),
        idx(2, 0, 28),
        idx(2**32 - 1, 2**32 - 1, 2**32 - 1, elements=b"x" * 100),
        idx(60_000, 28, 28, elements=b"x" * 100),
        idx(1, 28, 28, elements=b"x" * 785),
        idx(1, 28, 28, kind=13, elements=b"x" * 784),
    ],
)
@pytest.mark.parametrize("packed", ["", "gz"])
def test_an_idx_file_holds_what_its_sizes_say(content: bytes, packed: str, tmp_path: Path) -> None:
    write_mnist(tmp_path, content, packed=packed == "gz")
    answer = bounded(load("mnist", tmp_path))
    assert answer.startswith("65: ")
    assert "train-images-idx3-ubyte: not an idx file of uint8" in answer


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_much_is_read_to_its_size(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(idx(60_000, 28, 28))]
    parts += [packer.compress(bytes(1 << 24)) for _ in range(48)]  # 768 MiB
    write_mnist(tmp_path, b"", packed=True)
    packed = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    packed.write_bytes(b"".join(parts) + packer.flush())
    assert packed.stat().st_size < 1 << 20
    assert "not an idx file" in bounded(load("mnist", tmp_path))


@pytest.mark.parametrize("tail", [b"", b"\xff" * 50])
def test_a_bad_deflate_is_65(tail: bytes, tmp_path: Path) -> None:
    write_mnist(tmp_path, b"", packed=True)
    packed = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(idx(2, 28, 28, elements=bytes(1568)))[:12] + tail)
    assert bounded(load("mnist", tmp_path)).startswith("65: ")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read(make: Callable[[Path], object], tmp_path: Path) -> None:
    write_mnist(tmp_path, b"", packed=False)
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    file.unlink()
    make(file)
    assert "is not a regular file" in bounded(load("mnist", tmp_path))
    make(tmp_path / "data_batch_1")
    answer = bounded(partial(cifar_files.read, tmp_path / "data_batch_1"))
    assert "is not a regular file" in answer


def write_mnist(folder: Path, content: bytes, *, packed: bool) -> None:
    (folder / "MNIST/raw").mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in ("images-idx3", "labels-idx1"):
            file = folder / f"MNIST/raw/{part}-{name}-ubyte"
            if packed:
                file = file.with_name(f"{file.name}.gz")
            file.write_bytes(gzip.compress(content) if packed else content)


def load(task: str, data: Path) -> Callable[[], object]:
    loaded = tasks.load(Settings(task=task, data=data))
    return partial(loaded.data, train=True)


def encoded(kind: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("L", size).save(file, kind)
    return file.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: EPS, "UnidentifiedImageError"),
        (lambda: encoded("TIFF", (9, 9)), "UnidentifiedImageError"),
        (lambda: encoded("PNG", (12_000, 12_000)), "12000 x 12000 pixels take 1,152,000,000 bytes"),
        (lambda: encoded("GIF", (9_000, 9_000)), "9000 x 9000 pixels take 648,000,000 bytes"),
        (bytes, "UnidentifiedImageError"),
    ],
    ids=["eps", "tiff", "png", "gif", "empty"],
)
def test_an_image_is_of_a_promised_format_and_size(
    content: Callable[[], bytes], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").write_bytes(content())
    folder = Folder(tmp_path, ["cat"], 32)
    assert words in bounded(lambda: folder[0])
    assert not (tmp_path / "ran").exists()


def test_the_largest_image_fits(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    side = 7_500
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(tmp_path / "cat/1.jpg")
    folder = Folder(tmp_path, ["cat"], 32)
    assert bounded(lambda: folder[0], seconds=20) == ""


def test_the_bounds_bite(tmp_path: Path) -> None:
    assert bounded(lambda: bytearray(400 << 20)).startswith("MemoryError")
    (tmp_path / "x").write_bytes(pickle.dumps(1))
    assert bounded(lambda: any(iter(int, 1)), seconds=1) in ("SIGXCPU", "SIGKILL")
