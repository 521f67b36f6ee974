"""Evaluation: the task's loss and metric over the test set, every sample counted once.

The loss is weighted as in training: by tokens, if samples have tokens. The metrics count samples.
After it the task's method `sample` may let the model produce something, such as text.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.data.order import evaluation_shares, mix
from trainer.data.sets import Nested, UnreadableSample, tokens_of
from trainer.data.task_contract import metric_of, sample_of, scores_of
from trainer.distributed.generators import seed
from trainer.distributed.messages import from_all
from trainer.distributed.runtime import total
from trainer.distributed.tensors import map_tensors
from trainer.engine.run import Run
from trainer.engine.step.bad_samples import count_bad
from trainer.watch.stop import Stop


class _Stopped(BaseException):
    """A stop request came. It is not an Exception, so that a task's own code does not catch it."""


def evaluate(run: Run, stop: Stop) -> float | None:
    """Return the metric over the test set; None if a stop request came meanwhile.

    With TRAINER_EMA_DECAY the averaged weights are evaluated.
    """
    began = time.monotonic()
    run.wait_for_copy()  # a save may still read the weights that will be replaced
    run.synchronize()
    with run.average.in_use() if run.average else contextlib.nullcontext():
        return _evaluate(run, stop, began=began)


@torch.no_grad()
def _evaluate(run: Run, stop: Stop, *, began: float) -> float | None:
    runtime = run.runtime
    # The sums of losses and of their weights; then two for each score.
    sums = torch.zeros(2 + 2 * len(run.metrics), dtype=torch.float64)
    count = 0.0  # samples that could be read
    unread: list[UnreadableSample] = []
    run.strategy.module.eval()
    # As in a step: an evaluation that a resumed run repeats draws the same random numbers.
    seed(mix(run.settings.seed, run.step, runtime.seed_rank), runtime.device)
    shares = evaluation_shares(
        len(run.test), runtime.sizing.batches, runtime.data_rank, tokens=tokens_of(run.test)
    )
    for batch in run.test_batches(shares):
        if stop.agreed():
            return None
        outputs = run.strategy.forward(batch.inputs)
        if outputs is None:  # not the last pipeline stage
            continue
        losses = run.task.loss(outputs, batch.targets)
        scores = scores_of(run.task, outputs, batch.targets)
        parts = [losses, batch.weights, *(part for name in run.metrics for part in scores[name])]
        if not batch.whole:  # selecting and weighting takes longer than a small model's loss
            counted = batch.weights > 0
            parts = [part[counted] for part in parts]
            parts[0] = parts[0] * parts[1].double()
        count += len(parts[0])
        sums += torch.stack([part.sum(dtype=torch.float64) for part in parts]).cpu()
        unread += [one for one in batch.unreadable if one.weight]
    count, missing, loss, weight, *scored = total([count, len(unread), *sums.tolist()], runtime)
    if missing:
        count_bad(run, unread, part="test")
    if count + missing != len(run.test):
        raise Fault(
            Exit.CODE,
            f"evaluation counted {count:.0f} samples of {len(run.test)}: bug in muster; please report",
        )
    parts_and_wholes = zip(scored[::2], scored[1::2], strict=True)
    metrics = [
        metric_of(run.task, name, part / whole if whole else 0.0)
        for name, (part, whole) in zip(run.metrics, parts_and_wholes, strict=True)
    ]
    run.report(
        "eval",
        step=run.step,
        loss=loss / weight,
        metric=run.task.metric,
        **dict(zip(run.metrics, metrics, strict=True)),
        samples=int(count),
        seconds=time.monotonic() - began,
    )
    is_whole = _report_sample(run, stop)
    run.strategy.module.train()
    return metrics[0] if is_whole else None


def try_sample(run: Run) -> None:
    """Call the task's `sample` before the first step, so that a wrong one costs nothing.

    Raises Fault(64).
    """
    _sample(run, lambda: False)


def _report_sample(run: Run, stop: Stop) -> bool:
    """Report what the task's `sample` returns, if anything; return False if a stop request came."""
    began = time.monotonic()
    try:
        made = _sample(run, stop.agreed)
    except _Stopped:
        return False
    if made:
        run.report("sample", step=run.step, **made, seconds=time.monotonic() - began)
    return True


def _sample(run: Run, ends: Callable[[], bool]) -> dict[str, Any]:
    """Return what the task's `sample` returns; its forward pass raises _Stopped if `ends()`."""
    # All ranks draw the same random numbers, or they might not call `forward` equally often.
    seed(mix(run.settings.seed, run.step, "sample"), run.runtime.device)
    return sample_of(run.task, run.settings.task, _forward(run, ends))


def _forward(run: Run, ends: Callable[[], bool]) -> Callable[[Nested], Any]:
    """Return a forward pass with inputs and outputs on the CPU. It raises _Stopped if `ends()`."""

    def forward(inputs: Nested) -> Any:
        if ends():
            raise _Stopped
        moved = map_tensors(lambda tensor: tensor.to(run.runtime.device), inputs)
        outputs = run.strategy.forward(moved)
        if run.runtime.sizing.mesh.get("pp", 1) > 1:
            return _of_last_stage(outputs, run)
        return map_tensors(lambda tensor: tensor.cpu(), outputs)

    return forward


def _of_last_stage(outputs: Tensor | None, run: Run) -> Tensor:
    """Return a pipeline's outputs on every rank; ranks of all but the last stage pass None."""
    own = None if outputs is None else list(outputs.shape)
    shapes = from_all(own, run.runtime, list[int] | None)
    source, shape = next((rank, shape) for rank, shape in enumerate(shapes) if shape)
    whole = torch.empty(shape) if outputs is None else outputs.float().cpu().contiguous()
    dist.broadcast(whole, src=source, group=run.runtime.control)
    return whole
