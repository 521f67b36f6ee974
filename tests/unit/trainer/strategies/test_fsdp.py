"""`shard` of fsdp: which modules are gathered separately, and which with the whole model."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.models.blocks import choose
from trainer.strategies.fsdp import shard

LARGE = 8 * [512]  # layers of 262,656 parameters: one is too large to be gathered with the model


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp_shard",))
    dist.destroy_process_group()


def layers(*widths: int) -> nn.Module:
    """Return a list of layers with equal input and output width."""
    return nn.Sequential(nn.ModuleList(nn.Linear(width, width) for width in widths))


@pytest.mark.parametrize(
    ("model", "alone"),
    [
        (tasks.load(Settings(task="tokens")).model(), {"_Block": 4}),
        (tasks.load(Settings(task="charlm-gpt")).model(), {"Block": 2}),
        (layers(*LARGE, 64), {"Linear": 8}),
        (layers(*LARGE), {"Linear": 8}),
        # 65,792 each: three together are under the limit, four are not
        (layers(*5 * [256]), {"Linear": 2}),
        (layers(8, 8, 8), {}),
    ],
    ids=["tokens", "charlm-gpt", "one small", "none small", "many small", "all small"],
)
def test_the_smallest_blocks_are_gathered_with_the_model_up_to_a_mebibyte(
    model: nn.Module, alone: dict[str, int], mesh: DeviceMesh
) -> None:
    assert gathered_alone(model, mesh) == alone


def test_small_blocks_that_a_task_has_named_are_gathered_by_themselves(mesh: DeviceMesh) -> None:
    model = layers(8, 8, 8)
    choose([*model.get_submodule("0").children()])
    assert gathered_alone(model, mesh) == {"Linear": 3}


def test_small_blocks_of_two_types_are_gathered_by_themselves(mesh: DeviceMesh) -> None:
    model = layers(8, 8)
    first, second = model.get_submodule("0").children()
    first.double()
    assert gathered_alone(model, mesh) == {"Linear": 2}
    outputs = second(first(torch.ones(1, 8, dtype=torch.float64)).float())
    outputs.sum().backward()  # torch looks at the types at the first call


def test_a_scalar_parameter_is_refused(mesh: DeviceMesh) -> None:
    model = layers(8)
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(
        Fault, match=r"its parameter scale is a scalar, .*; give it shape"
    ) as refused:
        shard(model, mesh, Settings())
    assert refused.value.code == Exit.CONFIG


def gathered_alone(model: nn.Module, mesh: DeviceMesh) -> Counter[str]:
    """Return the kinds of gathered modules below the model, and how many of each."""
    shard(model, mesh, Settings())
    below = [module for module in model.modules() if module is not model]
    kinds = (type(module).__name__ for module in below if isinstance(module, FSDPModule))
    return Counter(kind.removeprefix("FSDP") for kind in kinds)
