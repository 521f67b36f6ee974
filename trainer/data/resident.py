"""Keep a data set on the rank's device if it is small enough, so that no batch is copied from the host.

This is automatic, with a message that gives the reason. It is only for `Tensors`, because any other data
set may use its indices in other ways.

    data = resident(data, device, free=free_memory(device))
"""

from dataclasses import replace

import torch

from trainer.data.sets import Data, Tensors

# The most that a data set may take of the memory that model and optimiser leave: activations need some.
_SHARE = 0.25


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of an accelerator; None for the CPU, where the data already is."""
    if device.type == "cpu":
        return None
    free: int = torch.accelerator.get_memory_info(device)[0]
    return free


def resident(data: Data, device: torch.device, *, free: int | None) -> tuple[Data, str | None]:
    """Return the data, on `device` if it fits there, and a message with the reason (None on a CPU)."""
    if free is None:
        return data, None
    if not isinstance(data, Tensors):
        return data, f"is read from the host: a {type(data).__name__} is not plain tensors"
    size = data.inputs.nbytes + data.targets.nbytes
    compared = f"{size / 2**20:,.1f} MiB; limit: {_SHARE:.0%} of {free / 2**20:,.0f} MiB free"
    if size > _SHARE * free:
        return data, f"is read from the host: {compared}"
    kept = replace(data, inputs=data.inputs.to(device), targets=data.targets.to(device))
    return kept, f"is kept on {device}: {compared}"
