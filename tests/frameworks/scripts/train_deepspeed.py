"""DeepSpeed: an engine with ZeRO stage 1, its checkpoints in a folder.

The shape is that of https://www.deepspeed.ai/getting-started/

    torchrun --nproc-per-node 2 train_deepspeed.py --data rows.txt --folder runs/deepspeed
"""

import argparse
import itertools
import os
import signal
import sys

import deepspeed
import torch
import torch.distributed as dist
from rows import Pairs
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))


def train():
    """Return whether SIGTERM has ended the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    data = Pairs(args.data)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    engine.load_checkpoint(args.folder)  # it warns if there is none

    for epoch in range(engine.global_steps // len(loader), args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in itertools.islice(loader, engine.global_steps % len(loader), None):
            loss = nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            if dist.get_rank() == 0:
                print(f"step {engine.global_steps} loss {loss.item()}")
            asked = stop.clone()
            dist.all_reduce(asked)  # the ranks must stop after the same step
            if asked:
                engine.save_checkpoint(args.folder)
                return True
    return False


deepspeed.init_distributed("gloo")
stopped = train()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(143 if stopped else 0)  # at sys.exit, gloo's threads may abort the process
