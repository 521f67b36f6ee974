"""The task imagefolder with the reference's recipe: the same on any number of ranks and workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from k8s.jobfile.validate import settings_of, validate
from tests.parity.compare import worst
from tests.ranks import run_ranks
from tests.unit.trainer.tasks.test_images import photos
from trainer import tasks
from trainer.config.catalogue import catalogue
from trainer.config.environment import from_environment
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import BUILT_IN
from trainer.data.loader import Loader
from trainer.data.order import Order, Samples
from trainer.tasks import imagefolder

ALL = {"augment": "trivial", "mixup": "0.2", "cutmix": "1", "label_smoothing": "0.1"}
ALL |= {"decay_all": "false"}


class Small(imagefolder.Task):
    """With a model without BatchNorm, because BatchNorm uses only the samples of a rank."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 5, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(400, 3)
        )


def task_of(folder: Path, **own: str) -> Any:
    written = {"TASK": "imagefolder", "DATA": str(folder), "IMAGE_SIZE": "32"}
    written |= {f"TASK_{name.upper()}": value for name, value in own.items()}
    return tasks.load(from_environment({f"TRAINER_{name}": text for name, text in written.items()}))


def read(data: Any, *shares: Samples) -> list[tuple[Tensor, Tensor]]:
    loader = Loader(data, device=torch.device("cpu"))
    return [(batch.inputs, batch.targets) for batch in loader(iter(shares))]


@pytest.mark.parametrize("augment", ["window", "crop", "rand", "trivial"])
def test_a_sample_is_a_function_of_seed_epoch_and_index(augment: str, tmp_path: Path) -> None:
    data = task_of(photos(tmp_path), **ALL | {"augment": augment}).data(train=True)
    order = Order(seed=1, length=len(data), end=2 * len(data))
    whole = order.take(0, 6)
    ((images, targets),) = read(data, whole)
    assert images.shape == (6, 3, 32, 32)
    assert torch.allclose(targets.sum(dim=1), torch.ones(6))
    assert (targets.max(dim=1).values < 1).any()  # some are mixed with another class
    torch.manual_seed(5)  # nothing depends on the generator's position
    apart = read(data, whole[3:6], whole[0:3])
    assert images[3:].equal(apart[0][0])
    assert targets[:3].equal(apart[1][1])
    other = Samples(
        whole.indices, whole.weights, whole.keys + 1 if whole.keys is not None else None
    )
    assert not images.equal(read(data, other)[0][0])


@pytest.mark.parametrize("augment", ["window", "crop"])
def test_grey_images_of_16_bits_keep_their_levels(augment: str, tmp_path: Path) -> None:
    for number, image in enumerate(sorted(photos(tmp_path).glob("train/*/*"))):
        level = np.full((30, 30), 7 * number, np.uint16)
        Image.fromarray(level * 256 + number).save(image)
    training = task_of(tmp_path, augment=augment).data(train=True)
    levels = [int(training[number][0].float().mean()) for number in range(36)]
    assert levels == [7 * number for number in range(36)]


def test_a_mixture_has_the_shares_of_its_parts(tmp_path: Path) -> None:
    """With one colour per class, the parts of a mixed picture can be identified."""
    for part in ("train", "val"):
        for label, name in enumerate("ab"):
            for number in range(4):
                photograph(tmp_path / part / name / f"{number}.png", 200 * label)
    data = task_of(tmp_path, augment="crop", mixup="1", cutmix="1").data(train=True)
    seen = set()
    for index in range(8):
        for seed in range(8):
            torch.manual_seed(seed)
            image, shares = data[index]
            assert image.float().mean() / 200 == pytest.approx(float(shares[1]), abs=0.01)
            seen.add(len(image.unique()))
    assert seen == {1, 2}  # mixed up, and cut


def photograph(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), (level, level, level)).save(path)


def test_the_catalogue_says_which_tasks_have_settings_of_their_own() -> None:
    assert {name for name, entry in catalogue().items() if entry.own_settings} == {*BUILT_IN}
    assert imagefolder.Task.Settings is BUILT_IN["imagefolder"]


@pytest.mark.slow
def test_two_ranks_with_workers_train_as_one(tmp_path: Path) -> None:
    common = {
        "task": f"{__name__}:Small", "data": str(photos(tmp_path / "photos")), "image_size": "32",
        "preflight": "off", "global_batch": "8", "steps": "20", "precision": "fp64", "lr": "0.1",
        "ema_decay": "0.9", "task_resize": "40",
    } | {f"task_{name}": value for name, value in ALL.items()}  # fmt: skip
    one = run_ranks(1, tmp_path / "one", **common, workers="1")
    two = run_ranks(2, tmp_path / "two", **common, mode="fsdp", micro_batch="2")
    losses = [[e["loss"] for e in run if "loss" in e] for run in (one, two)]
    assert len(losses[0]) > 20
    assert worst(torch.tensor(losses[0]), torch.tensor(losses[1])) < 1e-8
    (last,) = [e for e in two if e["event"] == "eval"][-1:]
    assert (last["top5"], last["samples"]) == (1.0, 36)


def test_loss_score_and_groups(tmp_path: Path) -> None:
    task = task_of(photos(tmp_path), **ALL)
    outputs = torch.randn(4, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1])
    shares = nn.functional.one_hot(labels, 3).float()
    expected = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")(outputs, labels)
    assert task.loss(outputs, labels).equal(expected)
    assert torch.allclose(task.loss(outputs, shares), expected)
    scores = [task.score(outputs, targets) for targets in (labels, shares)]
    assert all(scores[0][name].equal(scores[1][name]) for name in ("accuracy", "top5"))
    named = dict(task.model().named_parameters())
    matrices, flat = task.parameter_groups(named)
    assert flat["weight_decay"] == 0
    assert {p.ndim for p in flat["params"]} == {1}
    assert len(matrices["params"]) + len(flat["params"]) == len(named)
    assert len(task_of(tmp_path).parameter_groups(named)) == 1


def test_evaluation_takes_the_middle_of_the_resized_image(tmp_path: Path) -> None:
    test = task_of(photos(tmp_path), **ALL, resize="40").data(train=False)
    assert read(test, Samples(torch.arange(2), torch.ones(2)))[0][0].shape == (2, 3, 32, 32)


def test_a_partner_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (photos(tmp_path) / "train/digit-1").iterdir():
        path.write_bytes(b"no image")
    data = task_of(tmp_path, mixup="0.2").data(train=True)
    shares = Samples(torch.arange(12), torch.ones(12), torch.arange(12))
    (batch,) = Loader(data, device=torch.device("cpu"))(iter([shares]))
    assert batch.unreadable  # those of class 0 whose partner is of class 1
    assert all("mixed with" in bad.reason and "digit-1" in bad.reason for bad in batch.unreadable)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("taskMixup", -1, "trainer.taskMixup='-1': must be at least 0"),
        (
            "taskAugment",
            "random",
            "trainer.taskAugment='random': must be 'window', 'crop', 'rand' or",
        ),
        (
            "taskMixip",
            1,
            "trainer.taskMixip: task imagefolder has no such setting; did you mean tr",
        ),
    ],
)
def test_a_wrong_setting_is_refused_at_render_time(key: str, value: Any, says: str) -> None:
    trainer = {"task": "imagefolder", "data": "/data", key: value}
    with pytest.raises(Fault) as caught:
        settings_of(validate({"name": "photos", "trainer": trainer}))
    assert caught.value.code == Exit.CONFIG
    assert says in str(caught.value)


@pytest.mark.parametrize("augment", ["window", "crop"])
def test_a_class_without_an_image_to_train_on_is_65(tmp_path: Path, augment: str) -> None:
    """Its images may have another format. The run would end with 0 and never have seen the class."""
    for image in (photos(tmp_path) / "train/digit-2").iterdir():
        image.rename(image.with_suffix(".bmp"))
    with pytest.raises(
        Fault, match=r"train: no image in digit-2; wanted: .* end in \.gif, .*\.webp"
    ):
        task_of(tmp_path, augment=augment).data(train=True)
