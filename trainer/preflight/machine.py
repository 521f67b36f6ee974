"""Check this machine's devices, memory, disk and GPU health against what the run needs.

for finding in check_machine(folder, needed_devices=8, ranks=8, shm=0): ...
"""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

from trainer.watch.cgroup import available_memory

MIB = 2**20

_HOST_MEMORY_PER_RANK = 64 * MIB  # for a first step, without torch, which is already loaded
_DISK = 64 * MIB  # with less there is no room for a checkpoint
_PROBE = 8 * MIB
_SHARE_OF_DEVICE = 0.1  # with less free memory, another process uses the device
_SLOW_DISK = 10 * MIB  # bytes per second

# NVML's reasons for a lower clock that show a fault and not a full load.
_THROTTLES = {0x08: "hardware slowdown", 0x40: "overheated", 0x80: "power brake"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. `wrong` says what would help, None if it is fit; `odd` is no error."""

    name: str
    seen: str
    wrong: str | None = None
    odd: bool = False


def check_machine(folder: Path, *, needed_devices: int, ranks: int, shm: int) -> Iterator[Finding]:
    """Yield the findings of this machine, for `ranks` ranks and `shm` bytes of shared memory.

    `folder` is the run folder.
    """
    yield devices(needed_devices)
    yield host_memory(_HOST_MEMORY_PER_RANK * ranks)
    yield shared_memory(shm)
    yield disk(folder)


def check_device(device: torch.device) -> Iterator[Finding]:
    """Yield the findings of one rank's device."""
    if device.type == "cpu":
        return
    free, whole = torch.accelerator.get_memory_info(device)
    wrong = None
    if free < _SHARE_OF_DEVICE * whole:
        wrong = "another process holds the rest: end it, or take another device"
    yield Finding("device memory", f"{_mib(free)} of {_mib(whole)} free on {device}", wrong)
    if device.type == "cuda":
        yield from health(device)


def devices(needed: int) -> Finding:
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    wrong = None
    if count < needed:
        wrong = (
            f"TRAINER_DEVICES={needed} are planned: check the driver, the container's devices, and "
            "that torch is built for this kind of device"
        )
    return Finding("devices", str(count), wrong)


def host_memory(needed: int) -> Finding:
    free = available_memory()
    wrong = f"at least {_mib(needed)} needed: raise resources.memory" if free < needed else None
    return Finding("host memory", f"{_mib(free)} free", wrong)


def shared_memory(needed: int) -> Finding:
    """Compare the free part of /dev/shm with the batches that loader workers keep there."""
    folder = Path("/dev/shm")  # noqa: S108
    if not folder.is_dir():
        return Finding("shared memory", f"no {folder}", odd=True)
    free = shutil.disk_usage(folder).free
    wrong = None
    if free < needed:
        wrong = (
            f"at least {_mib(needed)} needed for the loader's batches: raise resources.shm, or lower "
            "TRAINER_WORKERS or TRAINER_MICRO_BATCH"
        )
    return Finding("shared memory", f"{_mib(free)} free", wrong)


def disk(folder: Path) -> Finding:
    """Check the run folder's free space, and write and flush a file as a checkpoint does."""
    probe = folder / f".preflight-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < _DISK:
            more = f"at least {_mib(_DISK)} needed: free some, or set another TRAINER_OUT"
            return Finding("disk", f"{_mib(free)} free in {folder}", more)
        began = time.monotonic()
        with probe.open("wb") as file:
            file.write(os.urandom(_PROBE))
            file.flush()
            os.fsync(file.fileno())
        speed = _PROBE / (time.monotonic() - began)
    except OSError as error:
        return Finding(
            "disk", f"{folder}: {error.strerror}", "set a TRAINER_OUT that can be written"
        )
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return Finding(
        "disk", f"{_mib(free)} free, {speed / 1e6:.0f} MB/s written", odd=speed < _SLOW_DISK
    )


def health(device: torch.device) -> Iterator[Finding]:
    """Yield a GPU's errors and clocks as NVML reports them, if nvidia-ml-py is installed."""
    if find_spec("pynvml") is None:
        return
    pynvml = import_module("pynvml")
    try:
        pynvml.nvmlInit()
        # By UUID: NVML does not number devices as CUDA_VISIBLE_DEVICES does.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        yield _health(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid), device)
    except pynvml.NVMLError as error:
        yield Finding("GPU health", f"{device}: no data from NVML: {error}", odd=True)


def _health(pynvml: ModuleType, handle: object, device: torch.device) -> Finding:
    def ask(query: Callable[[], int]) -> int:
        try:
            return query()
        except pynvml.NVMLError:  # not every GPU has ECC memory or remaps its rows
            return 0

    errors = ask(
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )
    worn_out = ask(lambda: pynvml.nvmlDeviceGetRemappedRows(handle)[3])
    reasons = ask(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    slowed = [name for bit, name in _THROTTLES.items() if reasons & bit]
    seen = f"{device}: {errors} uncorrected ECC errors, clock: {', '.join(slowed) or 'free'}"
    if errors or worn_out:
        return Finding("GPU health", seen, "reset or replace this GPU")
    return Finding("GPU health", seen, odd=bool(slowed))


def _mib(count: float) -> str:
    return f"{math.floor(count / MIB):,} MiB"
