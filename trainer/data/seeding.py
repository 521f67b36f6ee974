"""Seed the CPU's generators for a while: torch's, NumPy's and Python's.

with seeded(key):
    sample = data[index]
"""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the generators of the CPU within the block, and restore them after it."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
