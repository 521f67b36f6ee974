"""Imports large libraries without garbage collection, which would take a fifth of a start.

with without_collection(): import torch
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage within the block, and exclude its objects from later collections.

    A collection in a rank would also write to, and so copy, memory pages that it shares with others.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
