"""Seeds the generators from which layers draw random numbers.

seed_generators(mix(seed, step, rank), device)
"""

import torch


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the CPU's generator and that of `device`.

    torch.manual_seed seeds the generators of all devices. If no GPU is used, a CUDA build stores each
    call with its stack until CUDA is initialised, which takes an eighth of a small net's step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
