"""Build the task's model and apply the options that are the same for every mode.

model = build(model_of(task, settings), settings, runtime, task=task)
"""

import os
import re
import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.modes import DATA_AXES, MODES
from trainer.config.settings import Settings
from trainer.data.model_contract import check_model
from trainer.data.task_contract import blamed_on, blocks_of
from trainer.distributed.precision import cast, dtype_of
from trainer.distributed.runtime import Runtime
from trainer.distributed.torch_private import allow_graphs, join_axes
from trainer.engine.initial import initialise
from trainer.models.batchnorm import synchronise
from trainer.models.blocks import blocks, choose
from trainer.models.recompute import recompute_blocks


def build(model: nn.Module, settings: Settings, runtime: Runtime, *, task: tasks.Task) -> nn.Module:
    """Return the model with the same weights on every rank.

    It is on this rank's device; in a staged mode it is on the CPU, because it may be too large for one
    device. Raises Fault(64) for options that exclude each other, and what `initialise` raises.
    """
    split = runtime.sizing.mesh.get("tp", 1) > 1
    if settings.activation_checkpointing and settings.compile and split:
        # torch 2.15 raises "Mixing fake modes" for a recomputed block with DTensors.
        raise Fault(
            Exit.CONFIG,
            "TRAINER_COMPILE=true: does not work with TRAINER_ACTIVATION_CHECKPOINTING=true on a mesh "
            "with tp; set one of the two to false",
        )
    staged = MODES[runtime.sizing.mode].staged
    model = cast(model.to(torch.device("cpu") if staged else runtime.device), dtype_of(settings))
    initialise(model, settings, is_main=runtime.is_main, task=task)
    if runtime.mesh is not None:
        _broadcast(model, runtime.control if staged else None, name=settings.task)
        if settings.sync_batchnorm:
            model = synchronise(model, _data_group(runtime.mesh), runtime.device)
    if settings.activation_checkpointing:
        recompute_blocks(model)
    if settings.compile is True:
        if settings.activation_checkpointing and any([*one.buffers()] for one in blocks(model)):
            raise Fault(
                Exit.CONFIG,
                "TRAINER_COMPILE=true: does not work with TRAINER_ACTIVATION_CHECKPOINTING=true for "
                "blocks with buffers, such as BatchNorm's; set one of the two to false",
            )
        compile_blocks(model, split=split)
    return model


def model_of(task: tasks.Task, settings: Settings) -> nn.Module:
    """Return the model that the task makes, with the blocks that the task names. Raises Fault(64)."""
    with blamed_on(settings.task, "model()"):
        model = task.model()
    check_model(model, settings.task)
    for buffer in model.buffers():
        # An expanded one, or one of some columns, can be neither sent nor loaded.
        buffer.data = buffer.data.contiguous()
    choose(blocks_of(task, model, settings.task))
    return model


def compile_blocks(model: nn.Module, *, split: bool) -> None:
    """Compile block by block, in place: names stay, and equal blocks are compiled once.

    `split`: tp will split the layers. Raises Fault(64) on a machine without a compiler; torch would fail
    only at the first step.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Fault(
            Exit.CONFIG,
            f"TRAINER_COMPILE=true: torch.compile needs a C++ compiler, and there is no {compiler} "
            "on PATH; install one, or name it in CXX",
        )
    chosen = blocks(model)
    allow_graphs(2 * len(chosen))  # for each block, one to train and one to evaluate
    # If blocks of one kind differ in width, as in a ResNet, their inputs differ in size, too. By default
    # torch.compile takes that for data of changing sizes, for which its kernels are slower. But with
    # dynamic=False, torch 2.15 computes wrong gradients for GPT's last LayerNorm under tp.
    dynamic = False if _have_widths(chosen) and not split else None
    for block in chosen:
        block.compile(dynamic=dynamic)


def _have_widths(chosen: list[nn.Module]) -> bool:
    """Return whether blocks of one kind, of several layers each, differ in their parameters' shapes."""
    large = [block for block in chosen if any(True for _ in block.children())]
    shapes = {(type(block), *(one.shape for one in block.parameters())) for block in large}
    return len(shapes) > len({type(block) for block in large})


def _broadcast(model: nn.Module, group: dist.ProcessGroup | None, *, name: str) -> None:
    """Copy rank 0's weights to all ranks: a task may draw its weights from more than torch's seed.

    Raises Fault(64) for the type of a tensor that ranks cannot send.
    """
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        try:
            dist.broadcast(tensor.data, src=0, group=group)
        except (RuntimeError, ValueError) as error:
            if not re.search("scalar type|not supported", str(error)):
                raise
            raise Fault(
                Exit.CONFIG,
                f"task {name}: {key} of its model has the type {tensor.dtype}, which ranks cannot send; "
                "use e.g. torch.int32",
            ) from None


def _data_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    """Return the group of ranks that share a global batch and hold the same part of the model."""
    axes = [axis for axis in DATA_AXES if mesh[axis].size() > 1]
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    return join_axes(mesh[DATA_AXES], "data")
