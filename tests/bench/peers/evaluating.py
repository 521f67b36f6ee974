"""Evaluates the net of digits on its whole test set: one evaluation per step of a turn.

python evaluating.py muster|bare

`muster` does all that the trainer does in an evaluation. `bare` only counts correct answers. With
BENCH_LOOP=same it also sums the loss, after a training step whose memory it keeps, as `muster` does.
"""

import os
import sys

import torch
import torch.nn.functional as F
import training
from turn import Turns

from trainer.__main__ import train
from trainer.engine import loop


def muster():
    """Train one step; the evaluation at its end never ends."""
    evaluate = loop.evaluate

    def again(run, stop):
        turns = Turns()
        while True:
            evaluate(run, stop)
            turns.step()

    loop.evaluate = again
    train(is_forked=False)


def bare():
    net, data = training.net, training.task.data(train=False)
    same = os.environ.get("BENCH_LOOP") == "same"
    if same:
        optimizer, (inputs, targets) = training.optimizer_of(net), next(training.batches())
        training.loss_of(net(inputs), targets).backward()
        optimizer.step()
    turns = Turns()
    while True:
        net.eval()
        right = loss = 0
        with torch.no_grad():
            for chosen in torch.arange(len(data)).split(training.BATCH):
                outputs, targets = net(data.inputs[chosen]), data.targets[chosen]
                right += (outputs.argmax(1) == targets).sum().item()
                if same:
                    loss += F.cross_entropy(outputs, targets, reduction="sum").item()
        net.train()
        turns.step()


{"muster": muster, "bare": bare}[sys.argv[1]]()
