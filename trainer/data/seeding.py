"""Seed the CPU's generators temporarily: torch's, NumPy's and Python's.

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


def seed(key: int) -> None:
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the generators of the CPU after the block."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
