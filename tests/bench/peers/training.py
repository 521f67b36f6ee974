"""What every contender trains: digits' net, its data in the order of a seed, batch 32, SGD."""

import os

import torch
from torch.optim.lr_scheduler import LambdaLR

from trainer.config.settings import Settings
from trainer.tasks import digits

SETTINGS = Settings()
BATCH = SETTINGS.global_batch // int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
LOG_STEPS = SETTINGS.log_steps
CLIP = SETTINGS.clip_norm

torch.manual_seed(SETTINGS.seed)
data = digits.Task(SETTINGS).data(train=True)
net = digits.Net()
optimizer = torch.optim.SGD(
    net.parameters(),
    lr=SETTINGS.lr,
    momentum=SETTINGS.momentum,
    weight_decay=SETTINGS.weight_decay,
)


def schedule():
    """Return a schedule that is computed at every step, as a cosine is."""
    return LambdaLR(optimizer, lambda step: 1 / (1 + step / 1e9))


def batches():
    """Yield inputs and targets without end, indexed from memory: the quickest way there is."""
    while True:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        for chosen in order[RANK * BATCH :].split(BATCH)[:-1]:
            yield data.inputs[chosen], data.targets[chosen]
