"""Seed the generators of random numbers: torch's, NumPy's and Python's.

seed(mix(settings.seed, step, rank), device)
with restored():  # takes ten times as long as seed(), so once per batch
    for index, key in wanted:
        seed(key)
        sample = data[index]
"""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

_CPU = torch.device("cpu")


def seed(key: int, device: torch.device = _CPU) -> None:
    """Seed the CPU's generators, and torch's of all GPUs if `device` is one: dp and mp use several.

    torch.manual_seed seeds GPUs even if none is used. Then a CUDA build stores each call with its stack
    until CUDA is initialised, which takes an eighth of a small net's step.
    """
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        module = torch.get_device_module(device)
        getattr(module, "manual_seed_all", module.manual_seed)(key)  # mps has only one device


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the CPU's generators after the block."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
