"""Counts the accelerators of this machine.

python -m trainer.distributed.devices     # their number; 0 without torch
"""

import contextlib
import os


def count() -> int:
    """Return how many accelerators torch can use."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: PLC0415  # a program that is not our trainer may not have torch

        if torch.accelerator.is_available():
            return int(torch.accelerator.device_count())
    return 0


if __name__ == "__main__":
    print(count(), flush=True)
    os._exit(0)  # with torch loaded, Python's shutdown takes half a second of processor time
