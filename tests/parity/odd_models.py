"""The synthetic task with models that do to layers and weights what few models do."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import l1_unstructured
from torch.utils.checkpoint import checkpoint

from trainer.config.settings import Settings
from trainer.tasks import synthetic


class _Scaled(nn.Linear):
    """Has a tensor that is neither a parameter nor a buffer, and complex outputs."""

    def __init__(self) -> None:
        super().__init__(64, 64)
        self.scales = torch.linspace(0.5, 1.5, 64)

    def forward(self, values: Tensor) -> Tensor:
        scaled: Tensor = torch.fft.fft(super().forward(values) * self.scales.to(values))
        return scaled


class _Size(nn.Linear):
    """Has a weight whose columns are in order, and buffers whose elements share memory or have gaps."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())
        self.offset: Tensor
        self.factors: Tensor
        # Integers: a cast to fp64 would leave no gaps.
        self.register_buffer("offset", torch.ones(1, dtype=torch.int64).expand(64))
        self.register_buffer("factors", torch.ones(64, 2, dtype=torch.int64)[:, 0])
        self.register_buffer("nothing", torch.empty(0, 4))

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.abs() * self.factors + self.offset)


class Odd(synthetic.Task):
    """One activation in two places, odd weights and buffers, groups by the names of layers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._rate = settings.lr

    def model(self) -> nn.Module:
        activation = nn.ReLU()
        pruned = nn.Linear(64, 64)
        l1_unstructured(pruned, "weight", 0.5)
        return nn.Sequential(
            weight_norm(nn.Linear(64, 64)), activation, pruned, activation, _Scaled(), _Size()
        )

    def parameter_groups(self, parameters: Mapping[str, nn.Parameter]) -> Any:
        others = [one for name, one in parameters.items() if name not in ("2.bias", "5.weight")]
        named = [parameters["2.bias"], parameters["5.weight"]]
        return [{"params": named, "lr": self._rate / 2}, {"params": others}]


class Short(synthetic.Task):
    """Has a buffer of a type that ranks cannot send."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("count", torch.zeros(1, dtype=torch.int16))
        return model


class Hooked(synthetic.Task):
    """A hook keeps half of a layer's weights as they are."""

    def model(self) -> nn.Module:
        model = super().model()
        model.get_parameter("0.weight").register_hook(_of_first_half)
        return model


class HookedAfter(synthetic.Task):
    """The same with a hook that is called when the gradient is in its place."""

    def model(self) -> nn.Module:
        model = super().model()
        model.get_parameter("0.weight").register_post_accumulate_grad_hook(_clear_second_half)
        return model


def _of_first_half(gradient: Tensor) -> Tensor:
    return torch.cat([gradient[: len(gradient) // 2], 0 * gradient[len(gradient) // 2 :]])


def _clear_second_half(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad[len(parameter) // 2 :] = 0


class _Clamped(nn.Sequential):
    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.get_parameter("0.weight").data.clamp_(-0.05, 0.05)
        for layer in self:
            values = layer(values)
        return values


class Clamped(synthetic.Task):
    """Each forward pass in training limits the weights of a layer."""

    def model(self) -> nn.Module:
        return _Clamped(*super().model().children())


class _ClampedLinear(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.weight.data.clamp_(-0.05, 0.05)
        return super().forward(values)


class MaxNorm(synthetic.Task):
    """A lookup scales the rows that it reads, in the weight itself."""

    def model(self) -> nn.Module:
        return _Rows(64, 10, max_norm=0.5)


class MaxNormFirst(synthetic.Task):
    """The same in a model that can be cut into stages."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Rows(64, 64, max_norm=0.5), super().model())


class _Rows(nn.Embedding):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.argmax(dim=1))


class Lazy(synthetic.Task):
    """Its layers get their sizes from a forward pass when it is made."""

    def model(self) -> nn.Module:
        made = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.LazyLinear(10))
        made(torch.zeros(1, 64))
        return made


class _Reordered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(63, -1, -1), requires_grad=False)
        self.scales = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))

    def forward(self, values: Tensor) -> Tensor:
        return (values * self.scales)[:, self.order]


class Mixed(synthetic.Task):
    """Its parameters have three types, and one is a whole number."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Reordered(), super().model())


class RaisesInModel(synthetic.Task):
    def model(self) -> nn.Module:
        raise KeyError("width")


class RaisesInLoss(synthetic.Task):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise KeyError(len(outputs), len(targets))


class ClampedFirst(synthetic.Task):
    """The same in a model that can be cut into stages."""

    def model(self) -> nn.Module:
        return nn.Sequential(_ClampedLinear(64, 64), super().model())


class _Counts(nn.Sequential):
    count = 0

    def forward(self, values: Tensor) -> Tensor:
        self.count += self.training
        for layer in self:
            values = layer(values)
        return values / (1 + self.count % 3)


class Counts(synthetic.Task):
    """Outputs are smaller in two of three forward passes in training."""

    def model(self) -> nn.Module:
        return _Counts(*super().model().children())


class _Recomputed(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().forward, values, use_reentrant=False)
        return found


class RecomputesItself(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Recomputed(64, 64), super().model())


class _Picks(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 64)
        self.places = nn.Parameter(torch.arange(64).flip(0), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values[:, self.places])


class Picks(synthetic.Task):
    """A parameter has whole numbers."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Picks(), super().model())


class NormedBlocks(synthetic.Task):
    def model(self) -> nn.Module:
        pairs = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)) for _ in range(2)]
        return nn.Sequential(nn.Sequential(*pairs), super().model())


class LooksAtValues(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Positive(64, 64), super().model())


class _Positive(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values if values.sum() > 0 else -values)


class ReturnsTwo(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(*super().model().children(), nn.LSTM(10, 10))

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return super().loss(outputs[0], targets)

    def score(self, outputs: Any, targets: Tensor) -> Any:
        return super().score(outputs[0], targets)


class UsesALayerTwice(synthetic.Task):
    def model(self) -> nn.Module:
        layer = nn.Linear(64, 64)
        return nn.Sequential(layer, nn.ReLU(), layer, super().model())


class FailsInTheSecondStage(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), _Fails(64, 10))


class _Fails(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        if self.training and values.device.type != "meta":
            raise ValueError("these values are odd")
        return super().forward(values)
