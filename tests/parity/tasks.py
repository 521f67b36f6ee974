"""Tasks that only the tests train."""

from torch import nn

from trainer.tasks import synthetic


class Normed(synthetic.Task):
    """The synthetic task's vectors as small images, through convolutions with BatchNorm."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 10),
        )
