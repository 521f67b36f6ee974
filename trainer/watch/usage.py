"""The share of the processor and of the device that a rank uses.

meter = Meter(device); meter.read()
"""

import os
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch

_MEMORY_KNOWN = ("cuda", "xpu")  # device types whose memory torch can read


class Meter:
    """Reads this process's usage; made on the main thread, read on any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory_of = _whole(device) if device.type in _MEMORY_KNOWN else None
        self._busy = _busy(device)
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
            "busy": self._busy(),
            "memory": memory,
            "memory_of": self._memory_of,
        }


def _processor() -> float:
    """Return the processor seconds of this process and its ended children."""
    return sum(os.times()[:4])


def _whole(device: torch.device) -> int:
    size: int = torch.accelerator.get_memory_info(device)[1]
    return size


def _busy(device: torch.device) -> Callable[[], float | None]:
    """Return a function that returns the share of time a GPU is busy, None if NVML is missing."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return lambda: None
    nvml = import_module("pynvml")
    try:
        nvml.nvmlInit()
        # By UUID: NVML does not number devices as CUDA_VISIBLE_DEVICES does.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return lambda: None

    def read() -> float | None:
        try:
            return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except nvml.NVMLError:  # a MIG slice has no figure
            return None

    return read
