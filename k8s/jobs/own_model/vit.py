"""A vision transformer of torchvision, of any size, on photographs in folders.

TRAINER_TASK=vit:Task TRAINER_DATA=photos TRAINER_TASK_LAYERS=6 python -m trainer
"""

from pydantic import BaseModel, Field
from torch import nn
from torchvision.models import VisionTransformer

import trainer.config.settings
from trainer.tasks import imagefolder


class Task(imagefolder.Task):
    class Settings(BaseModel):
        layers: int = Field(12, ge=1)
        width: int = Field(192, ge=8, multiple_of=8, description="of the stream between the layers")
        patch: int = Field(16, ge=1, description="pixels of a side")

    def __init__(self, settings: trainer.config.settings.Settings, own: Settings) -> None:
        super().__init__(settings)
        self.image_size, self.own = settings.image_size, own

    def model(self) -> nn.Module:
        heads, hidden = self.own.width // 8, self.own.width * 4
        sizes = (self.image_size, self.own.patch, self.own.layers, heads, self.own.width, hidden)
        model: nn.Module = VisionTransformer(*sizes, num_classes=len(self.classes))
        return model
