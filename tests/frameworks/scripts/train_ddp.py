"""Plain PyTorch: DistributedDataParallel with its own checkpoint file.

The shape is that of https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html

    torchrun --nproc-per-node 2 train_ddp.py --data rows.txt --folder runs/ddp
"""

import argparse
import itertools
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rows import Pairs
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))


def save(file, model, optimizer, done):
    """Write the checkpoint under another name first, so that a half-written one is never found."""
    if dist.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
        torch.save(states, file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)


def train():
    """Return whether SIGTERM has ended the training."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Pairs(args.data)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)

    file = args.folder / "checkpoint.pt"
    done = 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]

    for epoch in range(done // len(loader), args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in itertools.islice(loader, done % len(loader), None):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if dist.get_rank() == 0:
                print(f"step {done} loss {loss.item()}")
            asked = stop.clone()
            dist.all_reduce(asked)  # the ranks must stop after the same step
            if asked:
                save(file, model, optimizer, done)
                return True
    return False


dist.init_process_group("gloo")
stopped = train()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(143 if stopped else 0)  # at sys.exit, gloo's threads may abort the process
