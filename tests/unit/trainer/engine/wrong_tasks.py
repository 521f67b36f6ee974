"""Tasks with typical mistakes; each has one compared with `Right`."""

import math
from operator import delitem
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainer.config.settings import Settings
from trainer.data.sets import Tensors

cross_entropy = nn.functional.cross_entropy


class Right:
    metric: Any = "accuracy"

    def __init__(self, settings: Settings) -> None:
        pass

    def model(self) -> Any:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    def data(self, *, train: bool) -> Any:
        points = torch.rand(64, 2, generator=torch.Generator().manual_seed(int(train)))
        return Tensors(points, (points[:, 0] > 0.5).long())

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(dim=1) == targets).float()


class LossIsAMean(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets)


class LossOfTwo(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs**2


class LossIsAFloat(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return float(cross_entropy(outputs, targets))


class LossIsNone(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        cross_entropy(outputs, targets, reduction="none")


class LossIsWhole(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return targets


class LossIsADict(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return {"loss": cross_entropy(outputs, targets, reduction="none")}


class LossIsNan(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return math.nan * cross_entropy(outputs, targets, reduction="none")


class LossHasNoGradient(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs.detach(), targets, reduction="none")


class LossRaises(Right):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs.logits, targets, reduction="none")


class LossSwapped(Right):
    def loss(self, targets: Any, outputs: Any) -> Any:  # type: ignore[override]
        return cross_entropy(outputs, targets, reduction="none")


class LossTakesOne(Right):
    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return outputs.sum(dim=1)


class ScoreOfTwo(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return torch.ones_like(outputs)


class ScoreIsAMean(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(dim=1) == targets).float().mean()


class ScoreInPercent(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return 100.0 + 0 * targets


class ScoreIsABool(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return bool((outputs.argmax(dim=1) == targets).all())


class ScoreIsNone(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return None


class ScoreRaises(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return outputs.topk(5).indices == targets


class ScoreIsNoMethod(Right):
    score = None  # type: ignore[assignment]


class NoMetric(Right):
    metric = None


class MetricIsAFunction(Right):
    def metric(self) -> str:
        return "accuracy"


class NoLoss:
    metric = "accuracy"

    def __init__(self, settings: Settings) -> None:
        pass

    model, data, score = Right.model, Right.data, Right.score


class TakesNoSettings(Right):
    def __init__(self) -> None:
        pass


class TakesMore(Right):
    def __init__(self, settings: Settings, width: int) -> None:
        pass


class RaisesWhenMade(Right):
    def __init__(self, settings: Settings) -> None:
        self.width = settings.width  # type: ignore[attr-defined]


class HasCallbacks(Right):
    def on_step(self, step: int) -> None:
        pass


class ListensWrongly(Right):
    def on_event(self, event: Any) -> None:
        raise KeyError(event["loss"])


class SampleRaises(Right):
    def sample(self, forward: Any) -> Any:
        return {"sum": forward(torch.zeros(1, 2)).sum().item() / self.scale}  # type: ignore[attr-defined]


class SampleIsATensor(Right):
    def sample(self, forward: Any) -> Any:
        return {"sum": torch.zeros(3)}


class SampleIsAText(Right):
    def sample(self, forward: Any) -> Any:
        return "made"


class SampleHasAStep(Right):
    def sample(self, forward: Any) -> Any:
        return {"step": 3}


class LossHasWeights(Right):
    def __init__(self, settings: Settings) -> None:
        self.teacher = nn.Linear(2, 2)  # it gets no gradient, so nobody misses it in the optimiser
        self.margin = nn.Linear(2, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        with torch.no_grad():
            wanted = self.teacher(outputs)
        return cross_entropy(self.margin(outputs), targets, reduction="none") + wanted.sum(dim=1)


class BlocksOfAnother(Right):
    def blocks(self, model: Any) -> Any:
        return [nn.Linear(2, 2)]


class BlocksWithinABlock(Right):
    def model(self) -> Any:
        return nn.Sequential(nn.Sequential(super().model()))

    def blocks(self, model: Any) -> Any:
        return [model[0], model[0][0]]


class ScoreWithoutTheMetric(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return {"top1": super().score(outputs, targets)}


class ScoreIsCalledLoss(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        right = super().score(outputs, targets)
        return {"accuracy": right, "loss": right}


class ScoreOfUnequalPair(Right):
    def score(self, outputs: Any, targets: Any) -> Any:
        return {"accuracy": (super().score(outputs, targets), outputs)}


class OfMeanIsAPair(Right):
    of_mean = ("accuracy", math.exp)


class OfMeanOfAnother(Right):
    of_mean: ClassVar = {"perplexity": math.exp}


class OfMeanRaises(Right):
    of_mean: ClassVar = {"accuracy": lambda mean: mean.log()}


class ModelIsNone(Right):
    def model(self) -> Any:
        nn.Linear(2, 2)


class ModelIsAClass(Right):
    def model(self) -> Any:
        return nn.Linear


class Layer(nn.Linear):
    """What the model may be about: outputs that are changed in place, or none."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__(2, 2)
        self.returns = returns

    def forward(self, points: Tensor) -> Any:
        outputs = super().forward(points).exp()
        squares = outputs * outputs
        outputs.add_(1)
        return squares if self.returns else None


class _Replaced(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        outputs = super().forward(values)
        if self.training:
            self.weight = nn.Parameter(self.weight.clamp(-1, 1))
        return outputs


class ModelReplacesAWeight(Right):
    def model(self) -> Any:
        return nn.Sequential(_Replaced(2, 3))


class ModelChangesInPlace(Right):
    def model(self) -> Any:
        return Layer(returns=True)


class ModelReturnsNone(Right):
    def model(self) -> Any:
        return Layer(returns=False)


class ModelIsLazy(Right):
    def model(self) -> Any:
        return nn.LazyLinear(2)


class ModelOnMeta(Right):
    def model(self) -> Any:
        return nn.Linear(2, 2, device="meta")


class ModelIsSparse(Right):
    def model(self) -> Any:
        model = nn.Linear(2, 2)
        model.register_buffer("graph", torch.eye(2).to_sparse())
        return model


class ModelIsComplex(Right):
    def model(self) -> Any:
        return nn.Linear(2, 2, dtype=torch.complex64)


class ModelSharesMemory(Right):
    def model(self) -> nn.Module:
        first, second = nn.Linear(64, 64), nn.Linear(64, 64)
        second.weight = nn.Parameter(first.weight.t())
        return nn.Sequential(first, second)


class ModelSavesLess(Right):
    def model(self) -> Any:
        return _saves(lambda state: delitem(state, "bias"))


class ModelSavesMore(Right):
    def model(self) -> Any:
        return _saves(lambda state: state.update(scale=torch.ones(1)))


def _saves(change: Any) -> Any:
    model: Any = nn.Linear(64, 10)
    model.register_state_dict_post_hook(lambda _module, state, *_: change(state))
    return model


class ModelRaises(Right):
    def model(self) -> Any:
        return nn.Linear("2", 2)  # type: ignore[arg-type]


class ModelOfAnotherWidth(Right):
    def model(self) -> Any:
        return nn.Linear(3, 2)


class ModelReturnsATuple(Right):
    def model(self) -> Any:
        return nn.LSTM(2, 2)


class TargetsOnAnotherDevice(Right):
    def loss(self, outputs: Any, targets: Tensor) -> Any:
        return cross_entropy(outputs, targets.to("meta"), reduction="none").to("cpu")
