"""A character model with LSTMs: bytes in, the next byte out.

TRAINER_TASK=charlm-lstm TRAINER_OPTIMIZER=adamw TRAINER_LR=0.003 python -m trainer
"""

from functools import partial

from torch import nn

from trainer.tasks._text import Recurrent, TextTask

Task = partial(TextTask, build=partial(Recurrent, nn.LSTM))
