"""Fine-tune one of torchvision's networks on photographs in folders: a faster head, and top-5.

14-fine-tune.yaml trains it. By hand, with this folder on PYTHONPATH:

    TRAINER_TASK=photos:Photos TRAINER_DATA=photos TRAINER_INIT=resnet18.pth TRAINER_INIT_SKIP='fc.*' \
        TRAINER_FREEZE='conv1.*,bn1.*,layer1.*' python -m trainer
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from torch import nn

import trainer.config.settings
from trainer.tasks import imagefolder


class Photos(imagefolder.Task):
    class Settings(BaseModel):
        head_rate: float = Field(
            10, gt=0, description="the head's learning rate, times the others'"
        )

    def __init__(self, settings: trainer.config.settings.Settings, own: Settings) -> None:
        super().__init__(settings)
        self._head_rate = own.head_rate * settings.lr

    def parameter_groups(self, parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return the head, the norms and biases, which do not decay, and all others."""
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        head = [p for name, p in trained.items() if name.startswith("fc.")]
        body = [p for name, p in trained.items() if not name.startswith("fc.")]
        return [
            {"params": head, "lr": self._head_rate},
            {"params": [p for p in body if p.ndim < 2], "weight_decay": 0.0},
            {"params": [p for p in body if p.ndim >= 2]},
        ]
