"""What a rank takes of its device and of the processor, told beside the training.

meter = Meter(device); meter.read()
"""

import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

_TELL = ("cuda", "xpu")  # the devices that say how much memory they have


class Meter:
    """Reads what this process takes; made on the main thread, read on any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory_of = _whole(device) if device.type in _TELL else None
        self._busy = _busy(device)
        self._before = (time.monotonic(), _processor())

    def read(self) -> dict[str, float | int | None]:
        """Return `cpu` in cores since the last look, the device's `busy` share, its `memory` in bytes.

        What a device does not tell is None: `busy` takes an NVIDIA GPU and nvidia-ml-py.
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
    """Return the seconds that this process and its ended children have computed."""
    return sum(os.times()[:4])


def _whole(device: torch.device) -> int:
    size: int = torch.accelerator.get_memory_info(device)[1]
    return size


def _busy(device: torch.device) -> Callable[[], float | None]:
    """Return what reads the share of time that a GPU computes, None where nobody tells."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return lambda: None
    nvml = import_module("pynvml")
    try:
        nvml.nvmlInit()
        # By its UUID: CUDA_VISIBLE_DEVICES gives devices other numbers than NVML does.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return lambda: None

    def read() -> float | None:
        try:
            return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except nvml.NVMLError:  # a slice of a GPU does not tell
            return None

    return read


def of_ranks(words: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what every rank has told, by rank."""
    return [
        {"rank": rank, "host": one["host"], **one["usage"]} for rank, one in sorted(words.items())
    ]
