"""What a task must have and return. Each error names the method, what it returned and what is wanted.

check_methods(task, "circles:Circles")
with blamed_on("circles:Circles", "loss()"):
    losses = task.loss(outputs, targets)
"""

import contextlib
import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainer.config.exits import Exit, Fault
from trainer.config.lines import EVAL_FIELDS
from trainer.data.sets import Batch, InMemory, Nested, tokens_of
from trainer.distributed.optim import Own
from trainer.distributed.runtime import ASSERT, as_fault, is_out_of_memory
from trainer.distributed.tensors import leaves

# Folders whose lines in a traceback are not the user's code.
_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen")

METHODS = ("model", "data", "loss", "score")
Tried = tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]  # losses, and what `scores_of` returns
OWN = tuple(Own.__dataclass_fields__)
_OF_A_SAMPLE = {"event", "time", "step", "seconds"}  # fields that the sample event already has
MORE = (*OWN, "blocks", "initial_weights", "on_event", "sample")  # optional methods


def check_methods(task: object, name: str) -> None:
    """Raise Fault(64) if a method or the metric is missing, or if the trainer never calls a method."""
    if missing := [m for m in METHODS if not callable(getattr(task, m, None))]:
        raise _wrong(
            name, f"it has no {missing[0]}(); a task needs {', '.join(METHODS)} and metric"
        )
    metric = getattr(task, "metric", None)
    if not isinstance(metric, str) or not metric:
        raise _wrong(name, f"metric is {metric!r}; wanted: a name for the mean of score()")
    of_kind = {m: getattr(type(task), m) for m in vars(type(task)) if m[0] != "_"}
    public = [m for m, value in of_kind.items() if callable(value) and not isinstance(value, type)]
    if unknown := sorted({*public} - {*METHODS, *MORE}):
        raise _wrong(
            name,
            f"the trainer never calls its {unknown[0]}(); it knows {', '.join(METHODS + MORE)}; the "
            "name of your own method must start with _",
        )


def own_of(task: object, name: str) -> Own:
    """Return the task's own methods of `Own`; an error in one becomes a Fault(64) with file and line."""
    return Own(
        **{
            method: partial(_call, f"{method}()", name, getattr(task, method))
            for method in OWN
            if hasattr(task, method)
        }
    )


def _call(method: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    with blamed_on(name, method):
        return function(*arguments)


def check_data(data: Any, name: str, *, train: bool) -> None:
    """Raise Fault(64) unless the data has a length, can be read, and has right `tokens` if any."""
    method = f"data(train={train})"
    kind = kind_of(data)
    if isinstance(data, DataLoader):
        raise _wrong(
            name,
            f"{method} returned a DataLoader; wanted: its dataset, because the trainer batches",
        )
    if isinstance(data, IterableDataset) and not hasattr(data, "__len__"):
        raise _wrong(
            name,
            f"{method} returned {kind}, an IterableDataset without a length; add to it "
            "`def __len__(self): return N`, the samples of an epoch",
        )
    if not hasattr(data, "__len__"):
        raise _wrong(
            name, f"{method} returned {kind}, which has no len(); wanted: a Dataset or Tensors"
        )
    with blamed_on(name, f"the len() of {method}"):
        len(data)
    if not isinstance(data, InMemory | Dataset) and not hasattr(data, "__getitem__"):
        raise _wrong(name, f"{method} returned {kind}; wanted: a Dataset or Tensors")
    if wrong := _wrong_tokens(data):
        raise _wrong(name, f"{method} returned {kind}, whose tokens {wrong}")


def _wrong_tokens(data: Any) -> str:
    """Return what is wrong with the counts of `tokens_of(data)`, and what is wanted; "" if nothing."""
    tokens: Any = tokens_of(data)  # whatever the task has under this name
    if tokens is None:
        return ""
    if isinstance(data, IterableDataset):
        return "would not be used: a stream's samples have no weights; give it another name"
    wanted = f"; wanted: a tensor of {len(data)} counts, one for each sample"
    if not isinstance(tokens, Tensor):
        return f"is a {kind_of(tokens)}{wanted}"
    if tokens.shape != (len(data),) or tokens.dtype == torch.bool or tokens.is_complex():
        return f"has shape {tuple(tokens.shape)} and {tokens.dtype}{wanted}"
    counts = tokens.double()  # torch compares no uint16
    if len(bad := ((counts > 0) & counts.isfinite()).logical_not().nonzero()):
        first = int(bad[0])
        return f"is {counts[first]:g} for sample {first}; wanted: above 0; leave the sample out"
    return ""


def blocks_of(task: Any, model: nn.Module, name: str) -> list[nn.Module]:
    """Return what the task's `blocks(model)` returns; empty without that method. Raises Fault(64)."""
    method = getattr(task, "blocks", None)
    if method is None:
        return []
    with blamed_on(name, "blocks()"):
        found = list(method(model))
    own = {*model.modules()} - {model}
    if not found or not all(isinstance(one, nn.Module) and one in own for one in found):
        raise _wrong(name, "blocks() returned something other than modules of the model")
    if inner := [one for block in found for one in {*block.modules()} - {block} if one in found]:
        raise _wrong(name, f"blocks() returned a {kind_of(inner[0])} that is inside another block")
    return found


def try_batch(
    task: Any, forward: Callable[[Nested], Any], batch: Batch, *, name: str, part: str
) -> Tried | None:
    """Pass a batch through model, loss and score; return the losses, and the scores, the metric first.

    Returns None if this rank has no outputs. Raises Fault(64) when a method raises or returns something
    wrong.
    """
    if not any(isinstance(value, Tensor) for value in leaves(batch.inputs)):
        raise _wrong(name, f"the inputs of the {part} samples hold no tensor and no number")
    with blamed_on(name, f"the model, on {part} samples,"):
        outputs = forward(batch.inputs)
    if outputs is None:  # another rank has the last stage of a pipeline
        return None
    count = len(batch.weights)
    with blamed_on(name, "loss()"):
        losses = task.loss(outputs, batch.targets)
    _check_losses(losses, name, count=count, part=part)
    with blamed_on(name, "score()"):
        scores = scores_of(task, outputs, batch.targets)
    if task.metric not in scores:
        raise _wrong(name, f"score() returned no {task.metric!r}, which is the metric")
    if taken := sorted(scores.keys() & EVAL_FIELDS):
        raise _wrong(
            name, f"score() returned {taken[0]!r}, a field that the eval event already has"
        )
    _check_of_mean(task, name, scores)
    for metric, (score, counted) in scores.items():
        _check_per_sample(score, name, "score()", count)
        _check_per_sample(counted, name, "score()", count)
        _check_accuracy(score, counted, name, metric=metric)
        with blamed_on(name, f"of_mean, of {metric},"):
            metric_of(task, metric, (score.sum() / counted.sum()).item())
    names = sorted(scores, key=lambda metric: (metric != task.metric, metric))
    return losses, {metric: scores[metric] for metric in names}


def check_gradients(task: Any, name: str, modules: Sequence[nn.Module]) -> None:
    """Raise Fault(64) if a backward pass has reached parameters that are not in `modules`."""
    trained = {id(parameter) for module in modules for parameter in module.parameters()}
    for attribute, value in getattr(task, "__dict__", {}).items():
        for key, parameter in value.named_parameters() if isinstance(value, nn.Module) else ():
            if parameter.grad is not None and id(parameter) not in trained:
                what = f"its {attribute} has parameters ({key}) that get a gradient"
                raise _wrong(name, f"{what} but are not in the model; make it a part of the model")


def scores_of(task: Any, outputs: Any, targets: Any) -> dict[str, tuple[Any, Any]]:
    """Return the task's scores by name: for each a pair of tensors, whose sums are divided.

    `score()` returns one score, that of `metric`, or a dict of scores. A score has shape (n,), for a
    mean over the samples, or is a pair of such tensors: 2 TP and 2 TP + FP + FN make an F1. `of_mean`
    has functions of the mean (see `metric_of`): exp of a loss makes a perplexity.
    """
    scores = task.score(outputs, targets)
    named = scores if isinstance(scores, dict) else {task.metric: scores}
    return {
        name: score
        if isinstance(score, tuple) and len(score) == 2
        else (score, torch.ones_like(score) if isinstance(score, Tensor) else score)
        for name, score in named.items()
    }


def metric_of(task: Any, name: str, mean: float) -> float:
    """Return the metric for the mean of its score: the mean, or the task's `of_mean` function of it."""
    try:
        return float(getattr(task, "of_mean", {}).get(name, float)(mean))
    except OverflowError:  # e.g. exp of a loss that has diverged
        return math.inf


@torch.no_grad()
def sample_of(task: Any, name: str, forward: Callable[[Nested], Any]) -> dict[str, Any]:
    """Return the fields that the task's `sample` returns; empty without that method or for None.

    Raises Fault(64) when `sample` raises, or returns what an event cannot hold.
    """
    if not hasattr(task, "sample"):
        return {}
    with blamed_on(name, "sample()"):
        made = task.sample(forward)
    if made is None:
        return {}
    if not isinstance(made, dict) or not all(isinstance(key, str) for key in made):
        what = f"a {kind_of(made)}; wanted: a dict of texts, numbers and lists by name, or None"
    elif taken := sorted(_OF_A_SAMPLE & made.keys()):
        what = f"{taken[0]!r}, a field that the sample event already has"
    else:
        try:
            json.dumps(made)
        except (TypeError, ValueError) as error:
            what = f"what JSON cannot hold: {error}"
        else:
            return made
    raise _wrong(name, f"sample() returned {what}")


def _check_of_mean(task: Any, name: str, scores: Mapping[str, Any]) -> None:
    """Raise Fault(64) unless `of_mean` has only functions, and only for scores that exist."""
    of_mean = getattr(task, "of_mean", {})
    if not isinstance(of_mean, dict) or not all(callable(value) for value in of_mean.values()):
        raise _wrong(
            name, f"of_mean is {of_mean!r}; wanted: a dict of functions by a metric's name"
        )
    if unknown := sorted(map(str, of_mean.keys() - scores.keys())):
        raise _wrong(name, f"of_mean has {unknown[0]!r}, which score() does not return")


def _check_losses(losses: Any, name: str, *, count: int, part: str) -> None:
    """Raise Fault(64) unless there is one floating-point loss for each of `count` samples.

    A single nan may be due to its sample. If all are nan with the initial weights, training cannot help.
    """
    _check_per_sample(losses, name, "loss()", count)
    if not losses.is_floating_point():
        raise _wrong(name, f"loss() returned {losses.dtype}; wanted: floating-point numbers")
    if losses.isnan().all():
        raise _wrong(
            name,
            f"loss() returned nan for {part} samples with the initial weights; wanted: numbers",
        )


def _check_accuracy(scores: Tensor, counted: Tensor, name: str, *, metric: str) -> None:
    """Raise Fault(64) if an accuracy is not from 0 to 1; `counted`: what the scores are divided by."""
    if metric == "accuracy" and not ((scores >= 0) & (scores <= counted)).all():
        raise _wrong(
            name,
            f"score() returned numbers from {scores.min():.3g} to {scores.max():.3g}; an accuracy is "
            "from 0 to 1; choose another name for the metric",
        )


def _check_per_sample(values: Any, name: str, method: str, count: int) -> None:
    if not isinstance(values, Tensor):
        raise _wrong(
            name, f"{method} returned a {kind_of(values)}; wanted: a tensor of shape ({count},)"
        )
    if values.shape != (count,):
        hint = '; reduction="none" gives one per sample' if values.dim() == 0 else ""
        raise _wrong(
            name,
            f"{method} returned shape {tuple(values.shape)} for {count} samples; wanted: ({count},)"
            f"{hint}",
        )


@contextlib.contextmanager
def blamed_on(name: str, method: str) -> Iterator[None]:
    """Turn an error of the task's code into Fault(64) with file and line; an OSError into Fault(65).

    A SystemExit counts too, as of a script that reads arguments where it is imported. A lost peer, a
    broken device and a lack of memory are passed on unchanged.
    """
    try:
        yield
    except Fault:
        raise
    except (Exception, SystemExit) as error:
        fault = as_fault(error)
        if is_out_of_memory(error) or fault.code != Exit.CODE:
            raise
        own = [
            f" ({frame.filename}:{frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(_NOT_THEIRS)
        ]
        what = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
        if ASSERT in str(fault):
            what = str(fault)
        raise Fault(
            Exit.DATA if isinstance(error, OSError) else Exit.CONFIG,
            f"task {name}: {method} raised {what}{own[-1] if own else ''}",
        ) from error


def kind_of(value: object) -> str:
    """Return the name of a value's type, or None."""
    return "None" if value is None else type(value).__name__


def _wrong(name: str, text: str) -> Fault:
    return Fault(Exit.CONFIG, f"task {name}: {text}")
