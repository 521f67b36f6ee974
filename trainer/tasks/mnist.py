"""Handwritten digits, 60,000 images: MNIST (LeCun et al.).

TRAINER_TASK=mnist TRAINER_DATA=data TRAINER_DOWNLOAD=1 python -m trainer
"""

from functools import partial

from trainer.tasks.parts.mnist import MnistTask

DEFAULTS = {"epochs": 3, "global_batch": 64}
MEASURED = "35 s (on made-up images of the same size)"
NEEDS_DATA = True
CUTS = 4

Task = partial(MnistTask, name="MNIST", mean=0.1307, std=0.3081)
