"""transformers: a Trainer with a small GPT-2, and a callback that saves and stops at SIGTERM.

The shape is that of https://huggingface.co/docs/transformers/trainer_callbacks

    torchrun --nproc-per-node 2 train_transformers.py --data rows.txt --folder runs/transformers
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rows import Rows
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()


class Tokens(Rows):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {"input_ids": row, "labels": row}


class SaveAtSigterm(TrainerCallback):
    stopped = False

    def __init__(self):
        self.asked = torch.zeros(1)
        signal.signal(signal.SIGTERM, lambda *_: self.asked.fill_(1))

    def on_step_end(self, args, state, control, **_):
        asked = self.asked.clone()
        dist.all_reduce(asked)  # the ranks must stop after the same step
        if asked:
            self.stopped = control.should_save = control.should_training_stop = True


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}")


def train():
    """Return whether SIGTERM has ended the training."""
    set_seed(0)
    stopper = SaveAtSigterm()
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=32, n_layer=2, n_head=2)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(args.folder),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=4,
            learning_rate=0.001,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Tokens(args.data),
        callbacks=[stopper, Print()],
    )
    found = get_last_checkpoint(args.folder) if args.folder.exists() else None
    trainer.train(resume_from_checkpoint=found)
    return stopper.stopped


stopped = train()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(143 if stopped else 0)  # at sys.exit, gloo's threads may abort the process
