"""Lightning: a LightningModule, and a callback that saves and stops at SIGTERM.

The shape is that of https://lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html

    torchrun --nproc-per-node 2 train_lightning.py --data rows.txt --folder runs/lightning
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from rows import Pairs
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
file = args.folder / "stopped.ckpt"


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.print(f"step {self.global_step + 1} loss {loss.item()}")
        return loss

    def train_dataloader(self):
        data = Pairs(args.data)
        sampler = StatefulDistributedSampler(
            data, num_replicas=self.trainer.world_size, rank=self.global_rank
        )
        return StatefulDataLoader(data, batch_size=4, sampler=sampler)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class SaveAtSigterm(lightning.Callback):
    asked = stopped = False

    def on_train_start(self, trainer, module):
        signal.signal(signal.SIGTERM, self.ask)  # instead of Lightning's own, which may block

    def ask(self, *_):
        self.asked = True

    def on_train_batch_end(self, trainer, module, *_):
        # The ranks must stop after the same step.
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            trainer.save_checkpoint(file)
            self.stopped = trainer.should_stop = True


lightning.seed_everything(0)
stopper = SaveAtSigterm()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    use_distributed_sampler=False,  # train_dataloader has one that can be resumed
    min_epochs=0,  # otherwise should_stop waits for the first epoch's end
    max_epochs=args.epochs,
    callbacks=[stopper],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), ckpt_path=file if file.exists() else None)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(143 if stopper.stopped else 0)  # at sys.exit, gloo's threads may abort the process
