"""The fewest lines of PyTorch; under torchrun with DistributedDataParallel.

BENCH_LOOP=same clips the gradient and follows a schedule, so that it trains as the others do.
BENCH_MICRO=4 accumulates micro-batches of four.
"""

import os

import torch.distributed as dist
import torch.nn.functional as F
import training
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from turn import Turns

same = os.environ.get("BENCH_LOOP") == "same"
micro = int(os.environ.get("BENCH_MICRO", training.BATCH))
parts = training.BATCH // micro
net, optimizer = training.net, training.optimizer
if "WORLD_SIZE" in os.environ:
    dist.init_process_group("gloo")
    net = DistributedDataParallel(net)
schedule = training.schedule()
turns = Turns()
for step, (inputs, targets) in enumerate(training.batches()):
    optimizer.zero_grad()
    total = 0
    for some, wanted in zip(inputs.split(micro), targets.split(micro), strict=True):
        loss = F.cross_entropy(net(some), wanted) / parts
        loss.backward()
        total = total + loss.detach()
    if same:
        nn.utils.clip_grad_norm_(net.parameters(), training.CLIP)
    optimizer.step()
    if same:
        schedule.step()
    if step % training.LOG_STEPS == 0:
        total.item()
    turns.step()
