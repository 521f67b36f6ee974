"""A data set that is kept on the rank's device, where it is small enough: no batch crosses the bus.

Chosen by itself, and told once with the reason. Only for data that is two tensors (`Tensors`): what a
data set of one's own does with its indices is not known here.

    data = resident(data, device, free=free_memory(device))
"""

from dataclasses import replace

import torch

from trainer.data.sets import Data, Tensors

# What a data set takes at most of what is free beside model and optimiser: activations come yet.
_SHARE = 0.25


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on an accelerator; None for the host, where data is anyway."""
    if device.type == "cpu":
        return None
    free: int = torch.accelerator.get_memory_info(device)[0]
    return free


def resident(data: Data, device: torch.device, *, free: int | None) -> tuple[Data, str | None]:
    """Return the data, on `device` if it is to be kept there, and why or why not (None: no question)."""
    if free is None:
        return data, None
    if not isinstance(data, Tensors):
        return data, f"is read from the host: a {type(data).__name__} is not plain tensors"
    size = data.inputs.nbytes + data.targets.nbytes
    compared = f"{size / 2**20:,.1f} MiB, of {free / 2**20:,.0f} MiB free it may take {_SHARE:.0%}"
    if size > _SHARE * free:
        return data, f"is read from the host: {compared}"
    kept = replace(data, inputs=data.inputs.to(device), targets=data.targets.to(device))
    return kept, f"is kept on {device}: {compared}"
