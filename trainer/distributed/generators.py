"""Seeds what layers draw random numbers from.

seed_generators(mix(seed, step, rank), device)
"""

import torch


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the CPU's generator and that of `device`.

    torch.manual_seed seeds those of all devices. Without one, a build for CUDA notes each call, with its
    stack, for the time when there is one: an eighth of the step of a small net.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
