"""Tasks with a wrong optimiser, groups or schedule; each has one mistake compared with `Right`."""

from typing import Any, ClassVar

import torch

from tests.unit.trainer.engine.wrong_tasks import Right


class OptimizerIsNone(Right):
    def optimizer(self, groups: Any) -> Any:
        torch.optim.SGD(groups, lr=1)


class OptimizerRaises(Right):
    def optimizer(self, groups: Any) -> Any:
        return torch.optim.SGD(groups, learning_rate=1)  # type: ignore[call-arg]


class GroupsAreParameters(Right):
    def parameter_groups(self, parameters: Any) -> Any:
        return list(parameters.values())


class GroupsLeaveOneOut(Right):
    def parameter_groups(self, parameters: Any) -> Any:
        return [{"params": [p for p in parameters.values() if p.dim() > 1]}]


class OptimizerOfOthers(Right):
    def optimizer(self, groups: Any) -> Any:
        return torch.optim.SGD(self.model().parameters(), lr=1)


class OptimizerWantsAClosure(Right):
    def optimizer(self, groups: Any) -> Any:
        return torch.optim.LBFGS([p for group in groups for p in group["params"]])


class OptimizerKeepsAList(Right):
    kept: ClassVar[Any] = {"norms": [1.0]}

    def optimizer(self, groups: Any) -> Any:
        kept = self.kept

        class Keeping(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                for group in self.param_groups:
                    for parameter in group["params"]:
                        self.state[parameter]["kept"] = kept
                return super().step(closure)

        return Keeping(groups, lr=1)


class OptimizerKeepsASparseTensor(OptimizerKeepsAList):
    kept: ClassVar[Any] = torch.ones(2).to_sparse()


class OptimizerAddsAnOption(Right):
    def optimizer(self, groups: Any) -> Any:
        class Counting(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                for group in self.param_groups:
                    group["count"] = group.get("count", 0) + 1
                return super().step(closure)

        return Counting(groups, lr=1)


class OptimizerIsMadeOfTwo(Right):
    def optimizer(self, groups: Any) -> Any:
        class Both(torch.optim.Optimizer):
            def __init__(self) -> None:
                super().__init__(groups, {"lr": 1})
                weight, bias = self.param_groups[0]["params"][:2]
                self.parts = [torch.optim.SGD([bias]), torch.optim.AdamW([weight])]

            def step(self, closure: Any = None) -> Any:
                for part in self.parts:
                    part.step(closure)

        return Both()


class ScheduleIsNegative(Right):
    def schedule(self, step: int, steps: int) -> Any:
        return -1
