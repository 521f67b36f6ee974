"""accelerate: a custom loop, saved with save_state and continued with skip_first_batches.

The shape is that of https://huggingface.co/docs/accelerate/usage_guides/checkpoint; set_trigger is from
https://huggingface.co/docs/accelerate/concept_guides/deferring_execution

    torchrun --nproc-per-node 2 train_accelerate.py --data rows.txt --folder runs/accelerate
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from rows import Pairs
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()


class Progress:
    """What is saved besides model, optimizer and random numbers."""

    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def train(accelerator):
    """Return whether SIGTERM has ended the training."""
    set_seed(0)
    model = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        DataLoader(Pairs(args.data), batch_size=4, shuffle=True),
    )
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if args.folder.exists():
        accelerator.load_state(str(args.folder))

    for epoch in range(progress.done // len(loader), args.epochs):
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, progress.done % len(loader))
        for inputs, targets in batches:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            progress.done += 1
            if accelerator.is_main_process:
                print(f"step {progress.done} loss {loss.item()}")
            if accelerator.check_trigger():  # set on one rank or more
                accelerator.save_state(str(args.folder))
                return True
    return False


accelerator = Accelerator(
    cpu=True,
    # The order of an epoch comes from its number, so that a resumed run has the same.
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
signal.signal(signal.SIGTERM, lambda *_: accelerator.set_trigger())
stopped = train(accelerator)
accelerator.end_training()
sys.stdout.flush()
os._exit(143 if stopped else 0)  # at sys.exit, gloo's threads may abort the process
