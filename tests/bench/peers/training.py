"""What every contender trains: the net of digits, its data in the order of a seed, batch 32, SGD.

BENCH_NET=tokens: the tiny GPT of the task tokens on the standard library's source.
"""

import os

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

from trainer.config.settings import Settings
from trainer.tasks import digits, tokens

SETTINGS = Settings()
WORLD_SIZE, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
LOG_STEPS = SETTINGS.log_steps
CLIP = SETTINGS.clip_norm

# A mode that splits the model gives all ranks the same samples.
is_split = os.environ.get("BENCH_MODE") in ("tp", "pp")
BATCH = SETTINGS.global_batch // (1 if is_split else WORLD_SIZE)

torch.manual_seed(SETTINGS.seed)
is_tokens = os.environ.get("BENCH_NET") == "tokens"
task = tokens.Task(SETTINGS) if is_tokens else digits.Task(SETTINGS)
data, net = task.data(train=True), task.model()


def loss_of(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def optimizer_of(net):
    return torch.optim.SGD(
        net.parameters(),
        lr=SETTINGS.lr,
        momentum=SETTINGS.momentum,
        weight_decay=SETTINGS.weight_decay,
    )


def schedule(optimizer):
    """Return a schedule that is computed at every step, like a cosine."""
    return LambdaLR(optimizer, lambda step: 1 / (1 + step / 1e9))


def batches():
    """Yield inputs and targets without end, indexed from memory, which is the fastest way."""
    first = 0 if is_split else RANK * BATCH
    while True:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        for chosen in order[first:].split(BATCH)[:-1]:
            if is_tokens:
                yield data.batch(chosen)
            else:
                yield data.inputs[chosen], data.targets[chosen]
