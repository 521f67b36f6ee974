"""Tasks that only the tests train: normalised, deep enough for eight stages, not to be cut, narrow."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import own_settings
from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.models.gpt import Size
from trainer.tasks import charlm_gpt, synthetic, tokens
from trainer.tasks.parts.classification import Classification
from trainer.tasks.parts.text import Recurrent, TextTask
from trainer.tasks.parts.token_files import of_bytes


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


class Deep(Classification):
    """Ten small layers, as a plain nn.Sequential; one normalises by a batch's statistics."""

    def __init__(self, _: Settings) -> None:
        pass

    def model(self) -> nn.Module:
        hidden = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), *hidden, nn.Linear(16, 4))

    def data(self, *, train: bool) -> Tensors:
        generator = torch.Generator().manual_seed(int(train))
        vectors = torch.randn(640 if train else 100, 8, generator=generator)
        return Tensors(vectors, (vectors[:, :2] > 0).long() @ torch.tensor([1, 2]))


class Whole(Deep):
    """The same as one module, without a chain."""

    def model(self) -> nn.Module:
        return _Whole(super().model())


class _Whole(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Short(TextTask):
    """The first bytes of each window: a step over them costs a fraction, and is made the same way."""

    def data(self, *, train: bool) -> Tensors:
        whole = super().data(train=train)
        return Tensors(whole.inputs[:, :16], whole.targets[:, :16])


Lstm = partial(Short, build=partial(Recurrent, nn.LSTM, width=16))
Gru = partial(Short, build=partial(Recurrent, nn.GRU, width=16))


class Tokens(tokens.Task):
    """The GPT of the task tokens, narrow, its windows short."""

    def __init__(self, settings: Settings, own: own_settings.Tokens | None = None) -> None:
        super().__init__(settings, own)
        self.size = Size(width=32, heads=4, layers=2, length=32)
        self.files = of_bytes(32, size=20_000)


class TiedTokens(Tokens):
    """The same with one tensor for embedding and head."""

    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("head").weight = model.get_submodule("tokens").weight
        return model


class WrappedTied(TiedTokens):
    """The same in another module, as transformers keeps its models."""

    def model(self) -> nn.Module:
        return _Whole(super().model())


Gpt = partial(Short, build=partial(charlm_gpt.Model, width=32))


class WholeResNet(Classification):
    """torchvision's resnet18 on random images of 16 x 16, whose class is the place that is bright."""

    def __init__(self, _: Settings) -> None:
        pass

    def model(self) -> nn.Module:
        from torchvision.models import resnet18

        whole: nn.Module = resnet18(num_classes=4)
        return whole

    def data(self, *, train: bool) -> Tensors:
        generator = torch.Generator().manual_seed(int(train))
        labels = torch.arange(64 if train else 10) % 4
        images = torch.randn(len(labels), 3, 16, 16, generator=generator)
        for image, label in zip(images, labels, strict=True):
            image[:, label * 4 : label * 4 + 4] += 1
        return Tensors(images, labels)


class Vit(WholeResNet):
    """torchvision's vision transformer on the same images, narrow."""

    def model(self) -> nn.Module:
        from torchvision.models import VisionTransformer

        sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
        whole: nn.Module = VisionTransformer(image_size=16, patch_size=8, num_classes=4, **sizes)
        return whole


class ResNet(WholeResNet):
    """The same with an eighth of its channels, each normalised by its own sample.

    By a batch's statistics a sample's gradient depends on which others are in its micro-batch, and that
    is another set wherever ranks accumulate. How BatchNorm does over ranks, WholeResNet shows.
    """

    def model(self) -> nn.Module:
        whole = super().model()
        for name, layer in list(whole.named_modules()):
            parent, _, last = name.rpartition(".")
            if isinstance(layer, nn.Conv2d):
                sizes: dict[str, Any] = {
                    n: getattr(layer, n) for n in ("kernel_size", "stride", "padding")
                }
                inside = layer.in_channels if layer.in_channels == 3 else layer.in_channels // 8
                thin: nn.Module = nn.Conv2d(inside, layer.out_channels // 8, bias=False, **sizes)
            elif isinstance(layer, nn.BatchNorm2d):
                thin = nn.GroupNorm(2, layer.num_features // 8)
            elif isinstance(layer, nn.Linear):
                thin = nn.Linear(layer.in_features // 8, layer.out_features)
            else:
                continue
            setattr(whole.get_submodule(parent), last, thin)
        return whole
