"""Pictures that cannot be read are reported and left out of the means; too many end the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.functional import to_pil_image

from tests.faults.tasks import Pictures
from tests.ranks import run_ranks
from trainer.config.settings import Settings

pytestmark = pytest.mark.slow

COUNT = 16  # pictures: one step per epoch
BAD = 5
ALL_AT_ONCE = {
    "task": "tests.faults.tasks:Pictures",
    "global_batch": str(COUNT),
    "epochs": "2",
    "eval_steps": "0",
    "clip_norm": "0",
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        for number in range(COUNT):
            folder = tmp_path / "pictures" / part / f"class-{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(256, (3, 8, 8), dtype=torch.uint8, generator=generator)
            to_pil_image(pixels).save(folder / f"{number:02}.png")
    return tmp_path / "pictures"


def spoil(pictures: Path, part: str) -> str:
    """Truncate a picture and return its path."""
    path = sorted((pictures / part).rglob("*.png"))[BAD]
    path.write_bytes(path.read_bytes()[:60])
    return str(path)


def bad_samples(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("kind") == "bad_sample"]


@pytest.mark.parametrize(
    ("ranks", "workers", "mode", "compiled"),
    [
        (1, "0", "hogwild", "false"),
        (2, "0", "ddp", "false"),
        (2, "2", "ddp", "false"),
        (2, "0", "ddp", "step"),
    ],
)
def test_the_means_are_over_what_can_be_read(
    ranks: int, workers: str, mode: str, compiled: str, pictures: Path, tmp_path: Path
) -> None:
    path = spoil(pictures, "train")
    settings = ALL_AT_ONCE | {"data": str(pictures), "workers": workers, "bad_samples": "1"}
    settings |= {"mode": mode, "processes": "1", "compile": compiled}
    events = run_ranks(ranks, tmp_path / "run", **settings)
    (bad,) = bad_samples(events)  # although it is read in each of two epochs
    assert (bad["index"], bad["where"], bad["part"]) == (BAD, f"({path})", "training")
    assert "Error" in bad["why"]
    task = Pictures(Settings(data=pictures))
    torch.manual_seed(0)
    model = task.model()
    whole = task.data(train=True)
    readable = [whole[index] for index in range(COUNT) if index != BAD]
    inputs = torch.stack([sample for sample, _ in readable])
    loss = task.loss(model(inputs), torch.tensor([label for _, label in readable])).mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    first = next(event for event in events if event["event"] == "step")
    assert first["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert first["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_one_more_than_allowed_is_65_and_named(pictures: Path, tmp_path: Path) -> None:
    path = spoil(pictures, "train")
    events = run_ranks(2, tmp_path / "run", code=65, data=str(pictures), **ALL_AT_ONCE)
    message = events[-1]["message"]
    assert f"training sample {BAD} ({path}): " in message
    assert "TRAINER_BAD_SAMPLES=0 are allowed" in message


def test_the_test_set_may_have_them_too(pictures: Path, tmp_path: Path) -> None:
    path = spoil(pictures, "test")
    settings = ALL_AT_ONCE | {"data": str(pictures), "bad_samples": "1"}
    events = run_ranks(2, tmp_path / "run", **settings)
    assert [(bad["where"], bad["part"]) for bad in bad_samples(events)] == [(f"({path})", "test")]
    (evaluated,) = [event for event in events if event["event"] == "eval"]
    assert evaluated["samples"] == COUNT - 1


def test_a_set_of_nothing_but_bad_samples_is_65(pictures: Path, tmp_path: Path) -> None:
    for path in (pictures / "train").rglob("*.png"):
        path.write_bytes(b"")
    settings = ALL_AT_ONCE | {"data": str(pictures), "bad_samples": "99"}
    events = run_ranks(1, tmp_path / "run", code=65, **settings)
    assert "can be read" in events[-1]["message"]
