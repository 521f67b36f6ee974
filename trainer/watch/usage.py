"""What a rank uses: its share of the processor and of the device, its memory, its time.

meter = Meter(device); meter.read()
report("usage", **usage(before, after, waits))
"""

import contextlib
import os
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from trainer.watch.straggler import Waits, Work, per_step, spread

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMORY_KNOWN = ("cuda", "xpu")  # device types whose memory torch can read


class Meter:
    """Reads this process's usage; made on the main thread, read on any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory_of: int | None = None
        if device.type in _MEMORY_KNOWN:
            self._memory_of = torch.accelerator.get_memory_info(device)[1]
        self._before = (time.monotonic(), _processor())

    def read(self) -> dict[str, float | int | None]:
        """Return `cpu` in cores since the last call, the device's `busy` share, its `memory` in bytes.

        What is not known is None: `busy` needs an NVIDIA GPU and nvidia-ml-py.
        """
        now, processor = time.monotonic(), _processor()
        then, before = self._before
        self._before = (now, processor)
        return {
            "cpu": round((processor - before) / (now - then), 3) if now > then else None,
            "busy": _busy(self._device),
            "memory": memory_in_use(self._device),
            "memory_of": self._memory_of,
        }


def usage(before: Mapping[int, Any], after: Mapping[int, Any], waits: Waits) -> dict[str, Any]:
    """Return a usage event's fields, from the statuses of all ranks then and now."""
    ranks, work = [], []
    for rank, one in sorted(after.items()):
        then = before.get(rank, {"work": {}, "phases": {}})
        work.append(Work(**one["work"]) - Work(**then["work"]))
        phases = {
            f"{name}_s": round(seconds - then["phases"].get(name, 0.0), 2)
            for name, seconds in one["phases"].items()
        }
        figures = {**one["usage"], **per_step(work[-1]), **phases}
        ranks.append({"rank": rank, "host": one["host"], **figures})
    return {"ranks": ranks, **spread(work), "stragglers_s": waits.update(work)}


def memory_in_use(device: torch.device) -> int | None:
    """Return the bytes that this process holds: of its device, or of the host without one."""
    if device.type in _MEMORY_KNOWN:
        # The allocator's own count: asking the driver might disturb what the main thread does.
        return torch.accelerator.memory_reserved(device)
    with contextlib.suppress(OSError):  # Linux has it
        return int(os.pread(_statm(os.getpid()), 100, 0).split()[1]) * _PAGE
    return None


@cache
def _statm(process: int) -> int:
    """Open the file that says what memory a process has: opening it at each event was a third of one."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY)


def _processor() -> float:
    """Return the processor seconds of this process and its ended children."""
    return sum(os.times()[:4])


def _busy(device: torch.device) -> float | None:
    """Return the share of time that a GPU is busy."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # noqa: BLE001  # no nvidia-ml-py, or a MIG slice, which has no figure
        return None
