"""A whole step as compiled code: gradient, clipping, the guard against NaN, and update.

    TRAINER_COMPILE=step python -m trainer

It is one graph if one process takes the step in one micro-batch. Otherwise there are two graphs: the
gradient as one flat tensor, which is summed over micro-batches and ranks, and the update. A backward
pass of autograd cannot be part of a graph, so torch.func differentiates; the optimisers are torch's
functional ones.
"""

import logging
import math
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch, Nested
from trainer.distributed.messages import from_all
from trainer.distributed.optim import options_of, zero_momentum
from trainer.distributed.precision import autocast
from trainer.distributed.tensors import Kept, map_tensors
from trainer.distributed.torch_private import allow_counts, allow_saved_tensor_hooks
from trainer.engine.step.compilable import unfit, unfit_model
from trainer.strategies import Context, WholeStep, summed_loss

log = logging.getLogger("trainer")

_State = dict[str, list[Tensor]]  # by name, a tensor for each parameter


def compile_step(model: nn.Module, optimizer: Optimizer, context: Context) -> WholeStep | None:
    """Return the compiled step; None if it cannot be compiled, with the reason in the log.

    All ranks get the same answer. Each has the whole model; under ddp they average their gradients.
    The step is tried once with a gradient of nan, which changes no weight and no state.
    """
    runtime = context.runtime
    if runtime.backend == "fake":  # a dry run has no values to compute with
        return None
    allow_counts()
    group = runtime.mesh.get_group("dp_replicate") if runtime.mesh else None
    step = _Step(model, optimizer, context, group)
    try:
        reason = unfit(optimizer, context, meeting=group is not None) or step.compile()
    except Exception as error:  # noqa: BLE001  # a compiler may raise anything
        reason = " ".join([f"{type(error).__name__}:", *str(error).split("\n", 2)[:2]])
    reason = next(filter(None, from_all(reason, runtime, str)), "")
    if not reason:
        return step
    allow_saved_tensor_hooks()  # a compilation that failed has left them forbidden
    if isinstance(optimizer, SGD | AdamW):
        optimizer.state.clear()  # the state that the try has created
        zero_momentum(optimizer)
    if runtime.is_main:
        log.warning("TRAINER_COMPILE=step: the steps run uncompiled: %s", reason)
    return None


class _Step:
    """The step as a callable. It reads state and rates at each call, because a resume replaces them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        context: Context,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._context = context
        self._group = group
        self._is_tried = False  # until then no collective: another rank may have failed
        names = {id(one): name for name, one in model.named_parameters() if one.requires_grad}
        groups = [
            [one for one in group["params"] if id(one) in names] for group in optimizer.param_groups
        ]
        self._parameters = [one for group in groups for one in group]
        self._names = [names[id(one)] for one in self._parameters]
        self._sizes = [len(group) for group in groups]
        self._options = options_of(optimizer)
        self._whole = _compiled(self._gradient_and_update)
        self._gradient = _compiled(self._flat_gradient)
        self._update = _compiled(self._updated)

    def __call__(self, micro_batches: Sequence[Batch], weight: float) -> tuple[Tensor, Tensor]:
        try:
            return self._take(micro_batches, weight)
        except Exception as error:
            if type(error).__name__ == "FailOnRecompileLimitHit":
                raise Fault(
                    Exit.CONFIG,
                    "TRAINER_COMPILE=step: the step would be compiled too often, because shapes of the "
                    "samples or numbers in the model change from step to step; unset TRAINER_COMPILE",
                ) from error
            raise

    def _take(self, micro_batches: Sequence[Batch], weight: float) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            like = self._parameters[0]
            scale = like.new_tensor(1 / weight)
            rates = [like.new_tensor(group["lr"]) for group in self._optimizer.param_groups]
            of_each = [self._optimizer.state[one] for one in self._parameters]
            state = {name: [one[name] for one in of_each] for name in of_each[0]}
            parts = [(batch.inputs, batch.targets, batch.weights) for batch in micro_batches]
            if len(parts) == 1 and self._group is None:
                whole: tuple[Tensor, Tensor] = self._whole(
                    self._parameters, state, rates, scale, *parts[0]
                )
                return whole
            flat: Tensor = self._gradient(self._parameters, scale, *parts[0])
            for part in parts[1:]:
                flat += self._gradient(self._parameters, scale, *part)
            loss = flat[-1].clone()
            if self._group is not None and self._is_tried:
                dist.all_reduce(flat, group=self._group)
            return loss, self._update(self._parameters, state, rates, flat)

    def compile(self) -> str:
        """Compile by taking a step that changes nothing; return why it cannot be used, "" if it can."""
        batch, device = self._context.example(), self._context.runtime.device
        batch = Batch(
            *map_tensors(
                lambda tensor: tensor.to(device), (batch.inputs, batch.targets, batch.weights)
            )
        )
        kept = Kept(self._model)
        try:
            trained = dict(zip(self._names, self._parameters, strict=True))
            if reason := unfit_model(self._model, trained, batch, self._context):
                return reason
            for parameter in self._parameters:
                self._optimizer.state[parameter] = self._first_state(parameter)
            changed = kept.restore()
            self((batch,) * self._context.runtime.sizing.batches.accumulation, math.nan)
        finally:
            changed_compiled = kept.restore()
        if changed != changed_compiled:
            return "the model replaces buffers in its forward pass; change them in place"
        self._is_tried = True
        return ""

    def _first_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return a state with which the first step does the same as torch without a state."""
        zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        if isinstance(self._optimizer, AdamW):
            return {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        return {"momentum_buffer": zeros}

    # What follows is compiled.

    def _gradient_and_update(
        self,
        parameters: list[Tensor],
        state: _State,
        rates: list[Tensor],
        scale: Tensor,
        inputs: Nested,
        targets: Nested,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        flat = self._flat_gradient(parameters, scale, inputs, targets, weights)
        return flat[-1], self._updated(parameters, state, rates, flat)

    def _flat_gradient(
        self,
        parameters: list[Tensor],
        scale: Tensor,
        inputs: Nested,
        targets: Nested,
        weights: Tensor,
    ) -> Tensor:
        """Return the gradients of `scale` times the loss and, as the last element, the loss."""
        context = self._context

        def scaled(trained: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            with autocast(context.settings, context.runtime.device):
                outputs = functional_call(self._model, (trained, buffers), (inputs,))
            loss = summed_loss(outputs, Batch(inputs, targets, weights), context)
            return loss * scale, (loss, buffers)

        trained = dict(zip(self._names, parameters, strict=True))
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        gradients, (_, (loss, after)) = grad_and_value(scaled, has_aux=True)(trained, buffers)
        for name, buffer in self._model.named_buffers():
            buffer.copy_(after[name])
        return torch.cat([*(gradients[name].reshape(-1) for name in self._names), loss.reshape(1)])

    def _updated(
        self, parameters: list[Tensor], state: _State, rates: list[Tensor], flat: Tensor
    ) -> Tensor:
        """Update with the clipped gradient and return its norm before clipping, shape ().

        If the gradient or the loss is not finite, nothing changes and the norm is nan or infinite.
        """
        *parts, loss = flat.split([*(one.numel() for one in parameters), 1])
        gradients = [part.view_as(one) for part, one in zip(parts, parameters, strict=True)]
        norm = nn.utils.get_total_norm(gradients)
        norm = torch.where(loss[0].isfinite(), norm, math.nan)
        if limit := self._context.settings.clip_norm:
            scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # as in torch's clip_grad_norm_
            gradients = [gradient * scale for gradient in gradients]
        changed = [*parameters, *(tensor for tensors in state.values() for tensor in tensors)]
        before = [tensor.clone() for tensor in changed]
        begin = 0
        for size, rate, options in zip(self._sizes, rates, self._options, strict=True):
            some = slice(begin, begin + size)
            of_some = {name: tensors[some] for name, tensors in state.items()}
            _update(parameters[some], gradients[some], of_some, rate, options)
            begin += size
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(torch.where(norm.isfinite(), tensor, old))
        return norm


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, options={"guard_filter_fn": _may_change})


def _may_change(looked_at: Sequence[Any]) -> list[bool]:
    """Return which guards to check at each call: none on code, nor on the contents of torch's layers.

    Those are most of the guards; checking them takes a tenth of a step of digits.
    """
    of_layers = torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe(looked_at)
    code = (type, ModuleType, FunctionType, BuiltinFunctionType)
    return [
        kept and not isinstance(one.value, code) and "__import_torch" not in one.name
        for kept, one in zip(of_layers, looked_at, strict=True)
    ]


def _update(
    parameters: list[Tensor],
    gradients: list[Tensor],
    state: _State,
    rate: Tensor,
    options: dict[str, Any],
) -> None:
    """Update the parameters and the state of one group in place."""
    if "betas" not in options:
        sgd(
            parameters,
            gradients,
            state["momentum_buffer"],  # type: ignore[arg-type]  # none of them is None
            foreach=True,
            weight_decay=options["weight_decay"],
            momentum=options["momentum"],
            lr=rate,  # a float would become a constant of the code
            dampening=0.0,
            nesterov=options["nesterov"],
            maximize=False,
        )
        return
    # In float32, 1 - 0.999 ** step would lose four digits at the first steps.
    steps = [step.double() for step in state["step"]]
    adamw(
        parameters,
        gradients,
        state["exp_avg"],
        state["exp_avg_sq"],
        [],
        steps,
        foreach=True,
        capturable=True,  # the step count is a tensor in the graph
        amsgrad=False,
        beta1=options["betas"][0],
        beta2=options["betas"][1],
        lr=rate,
        weight_decay=options["weight_decay"],
        eps=options["eps"],
        maximize=False,
    )
    for step, counted in zip(state["step"], steps, strict=True):
        step.copy_(counted)
