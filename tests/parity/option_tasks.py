"""Tasks for the tests of options: a loss on sharded tensors, weights that no seed decides."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.parity.tasks import Short
from trainer.config.settings import Settings
from trainer.models.ops import cross_entropy
from trainer.tasks import charlm_gpt, synthetic


class Normed(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64), super().model())


class ShardedLoss(synthetic.Task):
    """Gives our cross-entropy sharded tensors: by samples, or by the classes that it sums over."""

    sharded_by = "samples"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mesh = init_device_mesh("cpu", (2,))
        samples, whole = [Shard(0)], [Replicate()]
        logits = DTensor.from_local(outputs, mesh, samples)
        labels = DTensor.from_local(targets, mesh, samples)
        if self.sharded_by == "classes":
            logits, labels = logits.redistribute(mesh, [Shard(1)]), labels.redistribute(mesh, whole)
        losses = cross_entropy(logits, labels)
        assert isinstance(losses, DTensor)
        return losses.redistribute(mesh, samples).to_local()


class ShardedByClasses(ShardedLoss):
    sharded_by = "classes"


class PlainLoss(synthetic.Task):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")


class OurText(Short):
    """The narrow transformer with our cross-entropy."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, build=partial(charlm_gpt.Model, width=32))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets).mean(dim=1)


class Float32Only(PlainLoss):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert outputs.dtype == torch.float32, outputs.dtype
        return super().loss(outputs, targets)


class Float32OnlyText(OurText):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert outputs.dtype == torch.float32, outputs.dtype
        return super().loss(outputs, targets)


class Unseeded(synthetic.Task):
    """Draws its initial weights from what no seed decides: each rank gets others."""

    def model(self) -> nn.Module:
        torch.seed()
        return super().model()
