"""A character model with LSTMs: predicts the next byte.

TRAINER_TASK=charlm-lstm python -m trainer
"""

from functools import partial

from torch import nn

from trainer.tasks.parts.text import Recurrent, TextTask

DEFAULTS = {"epochs": 20, "optimizer": "adamw", "lr": 0.003}
MEASURED = "accuracy 0.29 in 30 s of one core"
CUTS = 4

Task = partial(TextTask, build=partial(Recurrent, nn.LSTM))
