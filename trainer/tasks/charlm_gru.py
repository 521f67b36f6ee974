"""A character model with GRUs: predicts the next byte.

TRAINER_TASK=charlm-gru python -m trainer
"""

from functools import partial

from torch import nn

from trainer.tasks.parts.text import Recurrent, TextTask

DEFAULTS = {"epochs": 15, "optimizer": "adamw", "lr": 0.003}
MEASURED = "accuracy 0.44 in 23 s"
CUTS = 4

Task = partial(TextTask, build=partial(Recurrent, nn.GRU))
