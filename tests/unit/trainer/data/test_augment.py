"""An augmented sample depends on (seed, epoch, index) alone."""

import pytest
import torch

from trainer.data.augment import Augmentation, draw
from trainer.data.loader import Loader
from trainer.data.order import Order, training_shares
from trainer.plan.batches import divide_batch
from trainer.tasks.parts.images import Images

PLAIN = {"mean": [0.0], "std": [1.0]}


def images(count: int, side: int = 8) -> torch.Tensor:
    return torch.randint(256, (count, 1, side, side), dtype=torch.uint8)


def seen(replicas: int, micro: int, *, start: int = 0) -> dict[tuple[int, int], torch.Tensor]:
    """Return every image of three epochs as the network sees it, by epoch and index."""
    torch.manual_seed(0)
    data = Images(images(24), torch.arange(24), Augmentation(8, **PLAIN, padding=4, flip=True))
    batches = divide_batch(12, micro, replicas, label=str)
    found = {}
    for rank in range(replicas):
        shares = list(training_shares(Order(5, 24, 72), batches, rank, start=start))
        loader = Loader(data, device=torch.device("cpu"))
        for number, batch in enumerate(loader(iter(shares))):
            position = start + number // batches.accumulation * 12
            for image, index in zip(batch.inputs, batch.targets.tolist(), strict=True):
                found[position // 24, index] = image
    return found


@pytest.mark.parametrize(("replicas", "micro"), [(2, 6), (2, 3), (4, 1)])
def test_the_same_sample_looks_the_same_on_any_number_of_ranks(replicas: int, micro: int) -> None:
    alone, many = seen(1, 12), seen(replicas, micro)
    assert alone.keys() == many.keys()
    assert len(alone) == 72
    assert all(torch.equal(alone[key], many[key]) for key in alone)
    assert sum(torch.equal(alone[0, i], alone[1, i]) for i in range(24)) < 6  # epochs differ


def test_the_same_sample_looks_the_same_after_a_restart() -> None:
    whole, rest = seen(1, 12), seen(2, 6, start=36)
    assert len(rest) == 36
    assert all(torch.equal(whole[key], rest[key]) for key in rest)


def test_a_window_is_cut_out_and_turned_as_one_would_by_hand() -> None:
    keys = torch.arange(50) * 977
    batch = images(50)
    augmented = Augmentation(8, **PLAIN, padding=2, flip=True)(batch, keys)
    tops, lefts, turned = draw(keys, 0, 5), draw(keys, 1, 5), draw(keys, 2, 2)
    for n in range(50):
        padded = torch.zeros(12, 12)
        padded[2:10, 2:10] = batch[n, 0] / 255
        window = padded[tops[n] : tops[n] + 8, lefts[n] : lefts[n] + 8]
        expected = window.flip(1) if turned[n] else window
        assert torch.equal(augmented[n, 0], expected)
    assert {tuple(values.unique().tolist()) for values in (tops, lefts)} == {(0, 1, 2, 3, 4)}


def test_evaluation_sees_the_middle_normalised() -> None:
    batch = images(3, side=12)
    middle = Augmentation(8, mean=[0.5], std=[0.25], flip=True)(batch, None)
    assert torch.equal(middle, (batch[..., 2:10, 2:10].float() / 255 - 0.5) / 0.25)


def test_draws_are_even_and_independent() -> None:
    keys = torch.arange(20_000)
    values = [draw(keys, number, 10) for number in range(3)]
    for drawn in values:
        assert drawn.bincount(minlength=10).float().sub(2000).abs().max() < 250
    both = (values[0] * 10 + values[1]).bincount(minlength=100)
    assert both.float().sub(200).abs().max() < 80
