"""The random numbers of layers depend only on the seed, as after torch.manual_seed."""

import random

import numpy as np
import torch

from trainer.distributed.generators import restored, seed


def test_what_is_drawn_is_what_manual_seed_gives() -> None:
    torch.manual_seed(2**62 + 7)
    expected = torch.rand(3)
    torch.rand(1)
    seed(2**62 + 7)
    assert torch.equal(torch.rand(3), expected)


def test_numpys_and_pythons_numbers_depend_on_the_seed_and_are_restored() -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: S311

    seed(5)
    first, second = draw(), draw()
    seed(5)
    assert draw() == first
    with restored():
        seed(6)
        assert draw() not in (first, second)
    assert draw() == second
