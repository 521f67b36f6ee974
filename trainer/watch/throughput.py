"""What the steps of a run amount to per second: tokens, floating-point operations, share of the peak.

throughput_of(model, data, read=..., settings=settings, runtime=runtime).rates(weight, seconds)
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config.modes import MODES
from trainer.config.settings import Settings
from trainer.data.sets import Batch, Data, tokens_of
from trainer.distributed.precision import dtype_of
from trainer.distributed.runtime import Runtime
from trainer.models import flops

log = logging.getLogger("trainer")

# Dense peak in 10^12 operations a second, of NVIDIA's and AMD's data sheets: with bf16 or fp16, with
# tf32, and with fp32. By how torch calls the device; the first whose words are all in its name.
_PEAKS = {
    "B200": (2250.0, 1125.0, 75.0),
    "H200 NVL": (835.5, 417.5, 60.0),
    "H200": (989.5, 494.7, 66.9),
    "H100 NVL": (835.5, 417.5, 60.0),
    "H100 PCIe": (756.0, 378.0, 51.0),
    "H100": (989.5, 494.7, 66.9),
    "A100": (312.0, 156.0, 19.5),
    "L40S": (362.0, 183.0, 91.6),
    "L4": (121.0, 60.0, 30.3),
    "MI300X": (1307.4, 653.7, 163.4),
}
_KINDS = {"bf16": 0, "fp16": 0, "tf32": 1, "fp32": 2}


@dataclass(frozen=True)
class Throughput:
    """Of a unit of a step's weight, which is a sample or a token; None: not known.

    `peak`: operations per second of all devices.
    """

    tokens: float | None = None
    flops: float | None = None
    peak: float | None = None

    def rates(self, weight: float, seconds: float) -> dict[str, float]:
        """Return the fields of a step event: of steps of this weight, in these seconds."""
        found = {}
        if self.tokens:
            found["tokens_per_s"] = weight * self.tokens / seconds
        if self.flops:
            found["flops_per_s"] = weight * self.flops / seconds
            if self.peak:
                found["peak_share"] = found["flops_per_s"] / self.peak
        return found


def throughput_of(
    model: nn.Module,
    data: Data,
    *,
    read: Callable[[], Batch],
    settings: Settings,
    runtime: Runtime,
) -> Throughput:
    """Return the throughput of a model as the task made it; `read` reads the first sample, repeated."""
    if not runtime.is_main:
        return Throughput()
    lengths = tokens_of(data)
    tokens = None if lengths is None else 1.0
    try:
        batch = read()
        tokens = tokens or _window(batch)
        units = len(batch.weights) * (1.0 if lengths is None else float(lengths[0]))
        found = flops.count(model, batch.inputs, dtype=dtype_of(settings)) / units
    except Exception as error:  # noqa: BLE001  # whatever the task's code raises; it is tried in full later
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        log.info("the steps' floating-point operations are not counted: %s", reason)
        return Throughput(tokens)
    return Throughput(tokens, found, _peak(settings, runtime))


def _window(batch: Batch) -> float | None:
    """Return the tokens of a sample where inputs and targets are windows of equal length."""
    windows = [
        one.shape
        for one in (batch.inputs, batch.targets)
        if isinstance(one, Tensor) and one.dim() == 2 and not one.is_floating_point()
    ]
    return float(windows[0][1]) if len(windows) == 2 and windows[0] == windows[1] else None


def _peak(settings: Settings, runtime: Runtime) -> float | None:
    """Return the peak of the ranks' devices; None of a mode that may use several in a rank."""
    mode = runtime.sizing.mode
    if runtime.device.type != "cuda" or not (MODES[mode].axes or mode == "single"):
        return None
    return peak_of(
        torch.cuda.get_device_name(runtime.device), settings.precision, runtime.world_size
    )


def peak_of(name: str, precision: str, devices: int) -> float | None:
    """Return the peak of so many devices of a name, in operations a second; None: not known."""
    words = name.replace("-", " ").split()
    if "MIG" in words:  # a slice of it
        return None
    for known, peaks in _PEAKS.items():
        if set(known.split()) <= set(words) and precision in _KINDS:
            return devices * peaks[_KINDS[precision]] * 1e12
    return None
