"""Try the task on one batch of each set before the first step, to find its errors early.

try_task(run)
"""

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch, Nested
from trainer.data.task_contract import Tried, blamed_on, check_gradients, try_batch
from trainer.distributed.generators import seed
from trainer.distributed.messages import from_all
from trainer.distributed.optim import check_state
from trainer.distributed.tensors import digest, leaves
from trainer.engine.evaluation import try_sample
from trainer.engine.run import Run, example
from trainer.engine.same_data import check_same_data
from trainer.models.compare import refuse_other

log = logging.getLogger("trainer")


@torch.no_grad()
def try_task(run: Run) -> None:
    """Pass a micro-batch of each set, its first sample repeated, through model, loss and score.

    Stores the names of the scores in the run. All ranks call it together. Raises Fault(64) if a method
    raises or returns a wrong value.
    """
    if is_own := ":" in run.settings.task:
        check_same_data(run)
    count, device = run.runtime.sizing.batches.micro, run.runtime.device
    run.strategy.module.eval()
    names: list[str] | None = None
    mixed: str | None = None
    read: list[Nested] = []
    for data, part in ((run.training, "training"), (run.test, "test")):
        # Another seed for each set, or samples that are drawn when they are read would be alike.
        seed(run.settings.seed + len(read), device)
        batch = example(data, run.settings, count, device=device, part=part)
        read.append(batch.inputs)
        forward = partial(_forward, run) if part == "training" else run.strategy.forward
        seed(run.settings.seed, device)
        tried = try_batch(run.task, forward, batch, name=run.settings.task, part=part)
        names = tried and list(tried[1])
        if part == "training" and is_own and count > 1:
            mixed = _mixes_samples(run, batch, tried)
    # In a pipeline only the last stage has seen the scores.
    every = from_all((names, mixed), run.runtime, tuple[list[str] | None, str | None])
    found = [(names, mixed) for names, mixed in every if names]
    if not found:
        raise Fault(Exit.CONFIG, f"task {run.settings.task}: the model returned None")
    run.metrics, mixed = found[0]
    if mixed and run.runtime.is_main:
        log.warning("%s", mixed)
    run.strategy = replace(run.strategy, before=None)  # frees the memory
    if run.runtime.is_main and _begin_alike(*read):
        log.warning(
            "task %s: the first training sample is also the first test sample; random numbers are the "
            "same in both calls of data(), so sets made of them need generators with different seeds",
            run.settings.task,
        )
    try_sample(run)
    run.strategy.module.train()


def _forward(run: Run, inputs: Nested) -> Tensor | None:
    """Return the outputs, and compare those of the first sample with the ones before a split."""
    outputs, before = run.strategy.forward(inputs), run.strategy.before
    # A model may compare the samples of a batch with one another: its rows are then longer.
    if isinstance(outputs, Tensor) and before is not None and outputs.shape[1:] == before.shape[1:]:
        what = f"task {run.settings.task}: its model, split as tensor_plan() says,"
        refuse_other(before, outputs[: len(before)], what)
    return outputs


def _mixes_samples(run: Run, alone: Batch, tried: Tried | None) -> str | None:
    """Try other samples beside the first; return a warning if its loss or score depends on them.

    `alone` has the first sample only, repeated. The two cannot be compared if this sample is random, or
    if others change its shape. All ranks call this together.
    """
    count, settings = len(alone.weights), run.settings
    seed(settings.seed, run.runtime.device)
    last = min(count, len(run.training)) - 1
    beside = example(run.training, settings, count, device=run.runtime.device, last=last)
    seed(settings.seed, run.runtime.device)
    forward = run.strategy.forward
    others = try_batch(run.task, forward, beside, name=settings.task, part="training")
    whole = ((batch.inputs, batch.targets) for batch in (alone, beside))
    if not tried or not others or not _begin_alike(*whole):
        return None
    values = {"loss()": (tried[0], others[0])} | {
        f"score(), {metric},": (score, others[1][metric][0])
        for metric, (score, _) in tried[1].items()
    }
    # Products of other sizes, as of a mixture of experts, are rounded in another way.
    rounding = 1e-3 if settings.precision in ("fp32", "fp64") else 2e-2
    for method, both in values.items():
        own, other = (float(one[0]) for one in both)
        if math.isfinite(own - other) and not math.isclose(
            own, other, rel_tol=rounding, abs_tol=1e-6
        ):
            return (
                f"task {settings.task}: {method} of the first sample is {own:.4g} beside copies of it "
                f"and {other:.4g} beside other samples, so figures depend on the micro-batch, and with "
                "it on the number of ranks; to avoid this, compute it from that sample alone"
            )
    return None


def _begin_alike(own: Nested, other: Nested) -> bool:
    """Return whether two batches of equal shapes begin with the same sample."""
    return all(
        type(one) is type(two) is Tensor
        and one.layout == two.layout == torch.strided
        and (one.shape, one.dtype) == (two.shape, two.dtype)
        and torch.equal(one[:1] if one.dim() else one, two[:1] if two.dim() else two)
        for one, two in zip(leaves(own), leaves(other), strict=False)
    )


def first_step(run: Run) -> AbstractContextManager[None]:
    """Return the context of a step, which blames an error in the first step on your own task.

    The first backward pass and the first update are in this step; they would fail in each attempt.
    """
    is_first = run.step == 0 and ":" in run.settings.task
    return _tried(run) if is_first else nullcontext()


@contextmanager
def _tried(run: Run) -> Iterator[None]:
    # What fsdp has sharded it replaces itself, by what it gathers and back.
    groups = run.strategy.optimizer.param_groups
    held = {id(one) for g in groups for one in g["params"] if not isinstance(one, DTensor)}
    every = run.strategy.module.named_parameters()
    names = {id(one): name for name, one in every if id(one) in held}
    beside = _beside_the_model(run)
    digests = [digest(tensor) for tensor in beside.values()]
    with blamed_on(run.settings.task, "the first step"):
        yield
    if gone := names.keys() - {id(one) for one in run.strategy.module.parameters()}:
        raise Fault(
            Exit.CONFIG,
            f"task {run.settings.task}: the forward pass replaces the parameter "
            f"{min(names[one] for one in gone).removeprefix('module.')}, and the optimiser would update "
            "the old one; change it in place, as with parameter.data.copy_(), or use a buffer",
        )
    check_gradients(run.task, run.settings.task, [run.strategy.module, *run.strategy.stages])
    for (name, tensor), before in zip(beside.items(), digests, strict=True):
        if digest(tensor) != before:
            raise Fault(
                Exit.CONFIG,
                f"task {run.settings.task}: a step changes its {name}, which is not in the model, so a "
                "checkpoint does not have it; make it a module or buffer of the model, or, if it is a "
                "frozen module, call eval()",
            )
    check_state(run.saved_optimizer, run.options, run.settings)


def _beside_the_model(run: Run) -> dict[str, Tensor]:
    """Return the tensors of the task, and of modules that it has, that are not of the model, by name.

    Not single numbers: they may count something that is only shown.
    """
    known = {
        id(tensor)
        for module in (run.strategy.module, *run.strategy.stages)
        for tensor in (*module.parameters(), *module.buffers())
    }
    found: dict[str, Tensor] = {}
    for attribute, value in getattr(run.task, "__dict__", {}).items():
        if isinstance(value, Tensor) and value.numel() > 1:
            found[attribute] = value.detach()
        elif isinstance(value, nn.Module):
            tensors = (*value.named_parameters(attribute), *value.named_buffers(attribute))
            found |= {name: tensor.detach() for name, tensor in tensors if id(tensor) not in known}
    return {name: one for name, one in found.items() if one.layout == torch.strided}
