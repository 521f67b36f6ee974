"""Weights & Biases. Reads WANDB_API_KEY, WANDB_MODE, WANDB_PROJECT, WANDB_NAME and others of its own.

TRAINER_TRACKER=wandb WANDB_MODE=offline python -m trainer
"""

import os
from collections.abc import Sequence

import wandb

from trainer.report.trackers import Figures, Start


class Run:
    def __init__(self, start: Start) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", start.project),
            name=os.environ.get("WANDB_NAME", start.name),
            dir=os.environ.get("WANDB_DIR", start.folder),
            id=os.environ.get("WANDB_RUN_ID", start.id),
            resume="allow",
            config=dict(start.parameters),
            allow_val_change=True,
            settings=wandb.Settings(console="off"),
        )
        # Its own steps must ascend, but a checkpoint's figures come after those of later steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def send(self, figures: Sequence[Figures]) -> None:
        for one in figures:
            self._run.log({**one.values, "step": one.step, "_timestamp": one.time})

    def finish(self, code: int) -> None:
        self._run.finish(exit_code=code)
