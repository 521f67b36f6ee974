"""The synthetic task with an optimiser, parameter groups, a schedule and metrics of its own."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from trainer.config.settings import Settings
from trainer.tasks import synthetic


class Grouped(synthetic.Task):
    """No decay for biases, and a slower last layer; the settings name the optimiser."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.settings = settings

    def parameter_groups(self, parameters: Mapping[str, nn.Parameter]) -> Any:
        biases = [p for name, p in parameters.items() if name.endswith("bias")]
        last = [p for name, p in parameters.items() if name == "2.weight"]
        rest = [p for name, p in parameters.items() if name == "0.weight"]
        return [
            {"params": rest, "weight_decay": 0.1},
            {"params": last, "lr": self.settings.lr / 2},
            {"params": biases, "weight_decay": 0.0},
        ]

    def schedule(self, step: int, steps: int) -> float:
        return 1 - step / steps

    def score(self, outputs: Tensor, targets: Tensor) -> Any:
        right = super().score(outputs, targets)
        top3 = (outputs.topk(3).indices == targets[:, None]).any(dim=1).float()
        zero, said = targets == 0, outputs.argmax(dim=1) == 0
        f1 = 2.0 * (zero & said), (zero.int() + said.int()).float()
        return {"accuracy": right, "top3": top3, "f1_of_zero": f1}


class Updated(Grouped):
    """The same with an optimiser that the trainer does not know."""

    def optimizer(self, groups: Any) -> Optimizer:
        return RMSprop(groups, lr=self.settings.lr, centered=True)


class TensorRate(Grouped):
    """The same with a learning rate that is a tensor, as a compiled optimiser wants it."""

    def optimizer(self, groups: Any) -> Optimizer:
        return Adam(groups, lr=torch.tensor(self.settings.lr))


class _Counting(RMSprop):
    """Counts its steps in its groups, as Prodigy and schedule-free optimisers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] += 1
            group["lr"] /= group["count"]
        return super().step(closure)


class _Noisy(SGD):
    """Adds noise to the weights, as stochastic gradient Langevin dynamics (Welling and Teh, 2011)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in (one for group in self.param_groups for one in group["params"]):
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
        return loss


class _Numbered(SGD):
    """Has a number in its state, as SparseAdam has, and a dict, as Shampoo has."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        (group,) = self.param_groups
        for parameter in (one for one in group["params"] if one.grad is not None):
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            means = state.setdefault("means", {"square": torch.zeros_like(parameter)})
            means["square"].lerp_(parameter.grad.square(), 1 / state["count"])
            parameter.addcdiv_(parameter.grad, means["square"].sqrt() + 1, value=-group["lr"])
        return loss


class Numbered(synthetic.Task):
    def optimizer(self, groups: Any) -> Optimizer:
        return _Numbered(groups)


class Noisy(synthetic.Task):
    def optimizer(self, groups: Any) -> Optimizer:
        return _Noisy(groups)


class CountsSteps(Grouped):
    def optimizer(self, groups: Any) -> Optimizer:
        return _Counting([{**group, "count": 0} for group in groups], lr=self.settings.lr)


class _WithSpare(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 64)
        self.spare = nn.Linear(4, 4)  # no forward pass uses it


class NeverUsed(synthetic.Task):
    """Adam has no state of a parameter that gets no gradient."""

    def model(self) -> nn.Module:
        return nn.Sequential(_WithSpare(), super().model())

    def optimizer(self, groups: Any) -> Optimizer:
        return Adam(groups)


class BiasesStay(Grouped):
    def parameter_groups(self, parameters: Mapping[str, nn.Parameter]) -> Any:
        biases = [p for name, p in parameters.items() if name.endswith("bias")]
        others = [p for name, p in parameters.items() if not name.endswith("bias")]
        return [{"params": others}, {"params": biases, "lr": 0.0}]

    def schedule(self, step: int, _: int) -> float:
        return float(step < 5)


class Counted(synthetic.Task):
    """A score that float32 cannot hold."""

    metric = "length"

    def score(self, outputs: Tensor, targets: Tensor) -> Any:  # noqa: ARG002
        return torch.full_like(targets, 2**24 + 1)


class Layers(nn.Module):
    """Six layers that are in no list, so that nothing shows that they are alike."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(6):
            setattr(self, f"layer{number}", nn.Linear(256, 256))

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.children():
            values = torch.relu(layer(values)) + values
        return values


class Turn(nn.Module):
    """Turns pairs of values, as rotary embeddings do: by complex numbers, or by a cosine and a sine."""

    def __init__(self, *, is_complex: bool) -> None:
        super().__init__()
        turns = torch.polar(torch.ones(32), torch.arange(32.0))
        self.register_buffer("turns", turns if is_complex else torch.view_as_real(turns))

    def forward(self, values: Tensor) -> Tensor:
        turns = self.get_buffer("turns")
        real, imaginary = values[..., ::2], values[..., 1::2]
        if turns.is_complex():
            turned = torch.complex(real, imaginary) * turns
            return torch.cat([turned.real, turned.imag], dim=-1)
        cos, sin = turns.unbind(-1)
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


class TurnedByComplex(synthetic.Task):
    def model(self) -> nn.Module:
        layers = super().model()
        return nn.Sequential(Turn(is_complex=True), *layers.children())


class TurnedByReal(synthetic.Task):
    def model(self) -> nn.Module:
        layers = super().model()
        return nn.Sequential(Turn(is_complex=False), *layers.children())


class _Masked(nn.Module):
    """Keeps a mask of its first forward pass as a plain attribute, as many transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(values.shape[-1], device=values.device) % 3 > 0
        return values * self.mask


class Masked(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Masked(), *super().model().children())


class _Experts(nn.Module):
    """Each sample goes through one of four layers, so a rank's samples may leave some of them out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        shares = self.gate(values).softmax(dim=1)
        chosen = shares.argmax(dim=1)
        mixed = torch.zeros_like(values)
        for number, expert in enumerate(self.experts):
            if (taken := (chosen == number).nonzero()[:, 0]).numel():
                found = expert(values[taken]) * shares[taken, number, None]
                mixed = mixed.index_put((taken,), found)
        return mixed


class Experts(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Experts(64), super().model())


class _Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64, sparse=sparse)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.embedding((values.abs() * 10).long().clamp(max=49)).mean(dim=1)
        return found


class DenseEmbedding(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Words(sparse=False), super().model())


class SparseEmbedding(synthetic.Task):
    """Its gradient has only the rows of the words in a batch."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Words(sparse=True), super().model())


class _Followed(nn.Module):
    """A layer and its moving average, which each forward pass in training brings up to date.

    The average is a frozen parameter, large enough that a checkpoint's copy of it takes a while.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.average = nn.Parameter(torch.zeros(2**11, 64, 64), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.average.data.lerp_(self.layer.weight.data.to(self.average.dtype), 0.1)
        both: Tensor = self.layer(values) + values @ self.average[-1]
        return both


class Followed(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Followed(), super().model())


class _Replaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.mean: Tensor

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(dim=0)
        return values - self.mean


class ReplacesABuffer(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_Replaced(), super().model())


class _OfRank0(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return values + super().forward(values) if os.environ["RANK"] == "0" else values


class UsedByOneRank(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(_OfRank0(64, 64), super().model())


class OneBlock(synthetic.Task):
    """By default the layers are sharded and recomputed as a whole."""

    def model(self) -> nn.Module:
        model = super().model()
        width = model.get_parameter("0.weight").shape[1]
        return nn.Sequential(nn.Linear(width, 256), Layers(), nn.Linear(256, width), model)


class SixBlocks(OneBlock):
    def blocks(self, model: nn.Module) -> Any:
        return [*model.get_submodule("1").children()]


def first_weights() -> dict[str, Tensor]:
    """Return the synthetic model's weights before any step."""
    torch.manual_seed(0)
    return synthetic.Task(Settings()).model().state_dict()
