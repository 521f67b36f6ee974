"""The share of the processor and of the device that a rank uses.

meter = Meter(device); meter.read()
"""

import os
import time

import torch

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
        # The allocator's own count: asking the driver might disturb what the main thread does.
        memory = None
        if self._memory_of is not None:
            memory = torch.accelerator.memory_reserved(self._device)
        return {
            "cpu": round((processor - before) / (now - then), 3) if now > then else None,
            "busy": _busy(self._device),
            "memory": memory,
            "memory_of": self._memory_of,
        }


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
