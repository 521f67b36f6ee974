"""The random numbers of layers depend only on the seed, as after torch.manual_seed."""

import torch

from trainer.distributed.generators import seed_generators


def test_what_is_drawn_is_what_manual_seed_gives() -> None:
    torch.manual_seed(2**62 + 7)
    expected = torch.rand(3)
    torch.rand(1)
    seed_generators(2**62 + 7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
