"""Clothes in MNIST's format, 60,000 images: Fashion-MNIST (Xiao et al., 2017).

TRAINER_TASK=fashion-mnist TRAINER_DATA=data TRAINER_DOWNLOAD=1 python -m trainer
"""

from functools import partial

from trainer.tasks.parts.mnist import MnistTask

DEFAULTS = {"epochs": 3, "global_batch": 64}
MEASURED = "as mnist: the images have the same size"
NEEDS_DATA = True
CUTS = 4

Task = partial(MnistTask, name="FashionMNIST", mean=0.2860, std=0.3530)
