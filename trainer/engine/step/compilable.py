"""Why a step cannot be compiled: its settings, its optimiser, or what the model does.

reason = unfit(optimizer, context, meeting=False) or unfit_model(model, trained, batch, context)
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from trainer.data.sets import Batch
from trainer.distributed.precision import autocast
from trainer.distributed.tensors import set_back
from trainer.distributed.torch_private import has_gradient_hook
from trainer.strategies import Context, summed_loss


def unfit(optimizer: Optimizer, context: Context, *, meeting: bool) -> str:
    """Return which setting or optimiser cannot be part of compiled code, "" if all can.

    `meeting`: ranks average their gradients.
    """
    settings = context.settings
    for cannot, reason in (
        (
            settings.precision == "fp16",
            "fp16 scales the gradient before the update; use bf16",
        ),
        (settings.activation_checkpointing, "blocks are recomputed by autograd"),
        (meeting and settings.sync_batchnorm, "synchronised BatchNorm sends in the middle"),
        (meeting and settings.comm_hook != "none", "a communication hook is DDP's"),
    ):
        if cannot:
            return reason
    kind = type(optimizer)
    if kind not in (SGD, AdamW):
        return f"a {kind.__name__} has no form that can be compiled; SGD and AdamW have"
    for group in optimizer.param_groups:
        for option in ("dampening", "amsgrad", "maximize", "differentiable"):
            if group.get(option):
                return f"the optimiser has {option}={group[option]}"
    return ""


def unfit_model(
    model: nn.Module, trained: Mapping[str, nn.Parameter], batch: Batch, context: Context
) -> str:
    """Return what the model does that compiled code would not, "" if nothing; `trained`: by name.

    It takes a forward and a backward pass, which may change buffers.
    """
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with autocast(context.settings, context.runtime.device):
        outputs = model(batch.inputs)
    if any(set_back(model.parameters(), weights)):
        return "the model changes weights in its forward pass"
    del weights
    loss = summed_loss(outputs, batch, context)
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        loss, list(trained.values()), allow_unused=True
    )
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is None:
            return f"the loss does not depend on {name}"
        if has_gradient_hook(parameter):
            return f"a hook on the gradient of {name} would not be called"
    if len(trained) != sum(one.requires_grad for one in model.parameters()):
        return "the optimiser leaves parameters out"
    return ""
