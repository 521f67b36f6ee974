"""The image tasks: read from small files in the data sets' own formats; the errors for bad ones."""

import gzip
import os
import pickle
import struct
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tests.ranks import run_ranks
from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Samples
from trainer.plan.sizing import size
from trainer.tasks import digits
from trainer.tasks.imagefolder import middle, window
from trainer.tasks.parts import torchvision_models
from trainer.tools.fake_step import needs_of_ranks


def write_idx(path: Path, array: torch.Tensor, *, pack: bool = False) -> None:
    shape = struct.pack(f">{array.dim()}I", *array.shape)
    raw = bytes([0, 0, 8, array.dim()]) + shape + array.to(torch.uint8).numpy().tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if pack:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw))
    else:
        path.write_bytes(raw)


def mnist(folder: Path, name: str = "MNIST", *, pack: bool = False) -> Path:
    """Write scikit-learn's digits in MNIST's format."""
    task = digits.Task(Settings())
    for train, part in ((True, "train"), (False, "t10k")):
        data = task.data(train=train)
        scaled = ((data.inputs - data.inputs.min()) * 255 / 4).clamp(0, 255)
        raw = folder / name / "raw"
        write_idx(raw / f"{part}-images-idx3-ubyte", scaled[:, 0], pack=pack)
        write_idx(raw / f"{part}-labels-idx1-ubyte", data.targets, pack=pack)
    return folder


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
@pytest.mark.parametrize("pack", [False, True])
def test_idx_files_are_read_as_they_were_written(
    name: str, folder: str, *, pack: bool, tmp_path: Path
) -> None:
    task: Any = tasks.load(Settings(task=name, data=mnist(tmp_path, folder, pack=pack)))
    training, test = task.data(train=True), task.data(train=False)
    assert (len(training), len(test)) == (1437, 360)
    images, labels = training.batch(torch.arange(5))
    assert images.shape == (5, 1, 28, 28)
    assert images.dtype == torch.uint8
    assert labels.tolist() == digits.Task(Settings()).data(train=True).targets[:5].tolist()
    inputs = training.transform_batch(images, None)
    assert inputs.shape == task.example(5)[0].shape  # of a dry run
    assert inputs.mean().abs() < 2  # normalised
    assert task.loss(task.model()(inputs), labels).shape == (5,)


@pytest.mark.slow
def test_mnist_trains_the_same_with_two_ranks_as_with_one(tmp_path: Path) -> None:
    folder = str(mnist(tmp_path / "data"))
    common = {
        "task": "mnist",
        "data": folder,
        "epochs": "2",
        "precision": "fp64",
        "preflight": "off",
    }
    runs = [
        run_ranks(ranks, tmp_path / mode, mode=mode, **common)
        for mode, ranks in (("single", 1), ("ddp", 2))
    ]
    losses = [[event["loss"] for event in run if event["event"] == "step"] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert runs[1][-1]["accuracy"] > 0.5


def cifar(folder: Path, count: int = 20) -> Path:
    (folder / "cifar-10-batches-py").mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        generator = np.random.default_rng(len(name))
        batch = {
            b"data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
            b"labels": [k % 10 for k in range(count)],
        }
        file = folder / "cifar-10-batches-py" / name
        file.write_bytes(pickle.dumps(batch, protocol=3))
    return folder


@pytest.mark.parametrize("model", [None, "resnet18"])
def test_cifar_is_read_and_trained_with_either_network(model: str | None, tmp_path: Path) -> None:
    task: Any = tasks.load(Settings(task="cifar10", data=cifar(tmp_path), model=model))
    training, test = task.data(train=True), task.data(train=False)
    assert (len(training), len(test)) == (100, 20)
    images, labels = training.batch(torch.tensor([3, 42]))
    assert images.shape == (2, 3, 32, 32)
    raw = pickle.loads((tmp_path / "cifar-10-batches-py/data_batch_1").read_bytes())  # noqa: S301
    assert images[0].flatten().tolist() == raw[b"data"][3].tolist()
    inputs = training.transform_batch(images, torch.tensor([1, 2]))
    assert inputs.shape == task.example(2)[0].shape  # of a dry run
    outputs = task.model()(inputs)
    assert task.loss(outputs, labels).shape == task.score(outputs, labels).shape == (2,)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


def test_a_pickle_that_wants_to_run_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cifar(tmp_path)
    batch = tmp_path / "cifar-10-batches-py/data_batch_2"
    batch.write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(
        Fault, match="data_batch_2: cannot be read: it refers to posix.system"
    ) as caught:
        tasks.load(Settings(task="cifar10", data=tmp_path)).data(train=True)
    assert caught.value.code == Exit.DATA
    assert not (tmp_path / "evil").exists()


def _truncate(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-7])


def _empty(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.unlink()


BROKEN = [
    ("mnist", mnist, _truncate, "not an idx file of uint8: it begins 00000803, .* delete it"),
    ("mnist", mnist, _empty, "train-images-idx3-ubyte: cannot be read"),
    (
        "cifar10",
        cifar,
        _truncate,
        "data_batch_1: cannot be read: .*delete it and download it again",
    ),
]


@pytest.mark.parametrize(("name", "write", "damage", "message"), BROKEN)
def test_damaged_files_are_65_and_named(
    name: str, write: object, damage: object, message: str, tmp_path: Path
) -> None:
    write(tmp_path)  # type: ignore[operator]
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(Fault, match=message) as caught:
        tasks.load(Settings(task=name, data=tmp_path)).data(train=True)
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_data_that_is_not_there_is_65_with_what_to_do(name: str, tmp_path: Path) -> None:
    for settings, message in (
        (Settings(task=name), "set TRAINER_DATA to the folder"),
        (Settings(task=name, data=tmp_path), "does not exist; set TRAINER_DOWNLOAD=1"),
    ):
        with pytest.raises(Fault, match=message) as caught:
            tasks.load(settings).data(train=True)
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_dry_run_needs_no_data(name: str) -> None:
    settings = Settings(task=name, mode="ddp", global_batch=8)
    (need,) = needs_of_ranks(settings, size(settings, 2, label=str))
    assert (
        need.activations > 4 * 28 * 28 * 4
    )  # more than the inputs: 4 of 28 x 28 or larger, float32


def test_a_download_that_fails_is_65(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no route to the host")

    monkeypatch.setattr(datasets, "MNIST", fail)
    task = tasks.load(Settings(task="mnist", data=tmp_path, download=True))
    with pytest.raises(Fault, match=f"download to {tmp_path} failed: no route to the host"):
        task.data(train=True)


def test_a_download_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    def begin(folder: str, *, download: bool) -> None:
        assert download
        (Path(folder) / "MNIST" / "raw").mkdir(parents=True)

    def cut_off(folder: str, *, download: bool) -> None:
        begin(folder, download=download)
        raise RuntimeError("connection reset")

    def while_another_node_does_too(folder: str, *, download: bool) -> None:
        begin(folder, download=download)
        mnist(tmp_path)

    task = tasks.load(Settings(task="mnist", data=tmp_path, download=True))
    monkeypatch.setattr(datasets, "MNIST", cut_off)
    with pytest.raises(Fault, match="failed: connection reset"):
        task.data(train=True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(datasets, "MNIST", while_another_node_does_too)
    assert len(task.data(train=True)) == 1437
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def photos(folder: Path) -> Path:
    """Write scikit-learn's digits 0 to 2 as PNG files of different sizes."""
    for train, part in ((True, "train"), (False, "val")):
        data = digits.Task(Settings()).data(train=train)
        for label in range(3):
            place = folder / part / f"digit-{label}"
            place.mkdir(parents=True)
            for number, image in enumerate(data.inputs[data.targets == label][:12]):
                pixels = ((image + 1) * 60).clamp(0, 255).to(torch.uint8)
                wide = pixels.repeat_interleave(1 + number % 2, dim=2)
                Image.fromarray(wide[0].numpy()).save(place / f"{number:03}.png")
    return folder


def test_a_folder_of_images_is_read_and_cut_to_squares(tmp_path: Path) -> None:
    settings = Settings(task="imagefolder", data=photos(tmp_path), image_size=21)
    task = tasks.load(settings)
    training: Any = task.data(train=True)
    assert len(training) == 36
    image, label = training[35]
    assert (image.shape, image.dtype, label) == ((3, 21, 21), torch.uint8, 2)
    seen = training.transform_batch(torch.stack([image, training[0][0]]), torch.tensor([5, 6]))
    assert seen.shape == (2, 3, 21, 21)
    assert task.model().fc.out_features == 3


@pytest.mark.parametrize("most", [(90, 120), (800, 600), (1000, 1333)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_middle_is_what_pillow_makes_of_it(
    most: tuple[int, int], mode: str, tmp_path: Path
) -> None:
    """Edges and large images differ by a fraction of a pixel: see _square."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    whole = Image.fromarray(noise).resize(most, Image.Resampling.BICUBIC).convert(mode)
    expected = ImageOps.fit(whole.convert("RGB"), (40, 40), Image.Resampling.BILINEAR)
    for suffix in ("png", "jpg"):
        path = tmp_path / f"a.{suffix}"
        whole.save(path, quality=95)
        with Image.open(path) as image:
            found = middle(image, size=32, side=40)
        difference = found.permute(1, 2, 0).int() - torch.tensor(np.array(expected))[4:36, 4:36]
        assert difference.abs().max() <= 15  # of 255, where a quarter of a pixel makes 20
        assert difference.float().mean(dim=(0, 1)).abs().max() < 0.5


def test_windows_lie_anywhere_and_half_of_them_are_flipped() -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    square = middle(image, size=24, side=24)
    places = {
        cut.numpy().tobytes(): (top, left, flipped)
        for top, left in product(range(4), repeat=2)
        for flipped in (False, True)
        for cut in [square[:, top : top + 21, left : left + 21]]
        for cut in [cut.flip(2) if flipped else cut]
    }
    torch.manual_seed(0)
    seen = Counter(places[window(image, size=21).numpy().tobytes()] for _ in range(1600))
    assert len(seen) == 32
    assert max(abs(count - 50) for count in seen.values()) < 30


@pytest.mark.slow
def test_imagefolder_trains_with_workers_and_resumes_exactly(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    for each in folder.glob("*/*"):
        os.utime(each, (0, 0))  # no list is kept of a folder that has just changed
    common = {
        "task": "imagefolder", "data": str(folder), "image_size": "32",
        "preflight": "off", "model": "squeezenet1_1", "workers": "2", "global_batch": "8",
        "schedule": "constant",
    }  # fmt: skip
    whole = run_ranks(1, tmp_path / "whole", **common, steps="8", eval_steps="3")
    run_ranks(1, tmp_path / "parts", **common, steps="5", eval_steps="2")
    lists = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("images-*")}
    assert set(lists) == {"images-train.safetensors", "images-val.safetensors"}
    parts = run_ranks(1, tmp_path / "parts", **common, steps="8", eval_steps="0")
    losses = [[e["loss"] for e in run if e["event"] == "step"] for run in (whole, parts)]
    assert losses[0] == losses[1]  # position counts what was trained on, not what was read ahead
    assert lists == {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("images-*")
    }


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (photos(tmp_path) / "train/digit-1/000.png").write_bytes(b"no image")
    training = tasks.load(Settings(task="imagefolder", data=tmp_path)).data(train=True)
    shares = iter([Samples(torch.tensor([11, 12]), torch.ones(2))])
    ((bad,),) = [batch.unreadable for batch in Loader(training, device=torch.device("cpu"))(shares)]
    assert bad.weight == 1
    assert "digit-1/000.png" in str(bad)


def test_folders_that_do_not_fit_are_65(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"train/ has 0 subfolders; .* needs train/CLASS/"):
        tasks.load(Settings(task="imagefolder", data=tmp_path))
    photos(tmp_path)
    (tmp_path / "val/digit-2").rename(tmp_path / "val/digit-7")
    task = tasks.load(Settings(task="imagefolder", data=tmp_path))
    with pytest.raises(Fault, match="differ in the classes digit-2, digit-7"):
        task.data(train=False)


def test_a_model_that_torchvision_has_not_is_64_with_what_is_close() -> None:
    with pytest.raises(Fault, match="similar names: resnet18") as caught:
        torchvision_models.build("resnet81", classes=3)
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "vit_b_16", "mobilenet_v3_small"])
def test_models_give_one_output_in_training(name: str) -> None:
    with torch.device("meta"):
        model = torchvision_models.build(name, classes=7)
        side = 299 if name == "inception_v3" else 224
        assert model(torch.empty(2, 3, side, side)).shape == (2, 7)
