"""A careful loop of plain PyTorch on one device: what muster's settings do, written by hand.

BENCH_NET=Pictures|Text, BENCH_PRECISION=fp32|tf32|bf16, BENCH_OPTIMIZER=sgd|adamw|adamw-fused,
BENCH_COMPILE=1 (the whole model), BENCH_CHANNELS_LAST=1, BENCH_BATCH=128
"""

import os

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tests.bench.peers import gpu_task
from tests.bench.peers.turn import Turns
from trainer.config.settings import Settings
from trainer.data.sets import Tensors

SETTINGS = Settings()
BATCH = int(os.environ["BENCH_BATCH"])
PRECISION = os.environ["BENCH_PRECISION"]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
for backend in (torch.backends.cuda.matmul, torch.backends.cudnn.conv):
    backend.fp32_precision = "tf32" if PRECISION == "tf32" else "ieee"

torch.manual_seed(SETTINGS.seed)
task = getattr(gpu_task, os.environ["BENCH_NET"])(SETTINGS)
data, net = task.data(train=True), task.model().to(device)
if "BENCH_CHANNELS_LAST" in os.environ:
    net = net.to(memory_format=torch.channels_last)
common = {"lr": SETTINGS.lr, "weight_decay": SETTINGS.weight_decay}
if os.environ["BENCH_OPTIMIZER"] == "sgd":
    optimizer = torch.optim.SGD(net.parameters(), momentum=SETTINGS.momentum, **common)
else:
    is_fused = os.environ["BENCH_OPTIMIZER"] == "adamw-fused"
    optimizer = torch.optim.AdamW(net.parameters(), fused=is_fused or None, **common)
schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step / 1e9))
if os.environ["BENCH_NET"] == "Pictures":
    data = Tensors(data.inputs.to(device), data.targets.to(device))


def to_device(batch: torch.Tensor) -> torch.Tensor:
    """Copy as nanoGPT's get_batch does: from pinned memory, so that the host does not wait."""
    if device.type == "cpu" or batch.is_cuda:
        return batch
    return batch.pin_memory().to(device, non_blocking=True)


def batches():
    while True:
        for chosen in torch.randperm(len(data)).split(BATCH)[: len(data) // BATCH]:
            inputs, targets = (to_device(one) for one in data.batch(chosen))
            if "BENCH_CHANNELS_LAST" in os.environ:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            yield inputs, targets


run = torch.compile(net) if "BENCH_COMPILE" in os.environ else net
turns = Turns()
for step, (inputs, targets) in enumerate(batches()):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=PRECISION == "bf16"):
        loss = task.loss(run(inputs), targets).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), SETTINGS.clip_norm)
    optimizer.step()
    schedule.step()
    if step % SETTINGS.log_steps == 0:
        loss.item()
    gpu_task.stepped(turns)
