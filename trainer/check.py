"""Check your own task on two samples, in seconds: every method, the backward pass, the optimiser.

python -m trainer.check circles:Circles
TRAINER_PRECISION=fp64 python -m trainer.check circles:Circles    # with settings
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.arguments import Parser, run_tool
from trainer.config.environment import from_environment, variable
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import in_words, own_settings
from trainer.config.settings import Settings
from trainer.imports import without_collection

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trainer.tasks import Task

_HELP = """
Creates the task, both data sets and the model on the CPU. Passes two samples of each set through model,
loss and score. Then does the backward pass and one step of the optimiser. Prints a line for each part
that is right, and stops at the first error, which would also end a run before its first step.

exit codes: 0 all is right, 64 the task is wrong, 65 its data cannot be read.
"""


def main(arguments: list[str] | None = None) -> int:
    """Check the task that the arguments name and return the exit code."""
    parser = Parser(
        prog="python -m trainer.check",
        description="Check your own task on two samples.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", help="module:Class, as in TRAINER_TASK, or a built-in task")
    return run_tool(
        "check", lambda: (f"ok  {line}" for line in check(parser.parse_args(arguments).task))
    )


def check(name: str) -> Iterator[str]:
    """Yield a line for each part that is right.

    Raises Fault(64) or Fault(65) at the first error.
    """
    settings = from_environment({**os.environ, variable("task"): name})
    # torch takes seconds to import; --help and wrong settings do not need it.
    with without_collection():
        import torch  # noqa: PLC0415

        from trainer import tasks  # noqa: PLC0415
        from trainer.data.loader import Loader  # noqa: PLC0415
        from trainer.data.model_contract import check_model  # noqa: PLC0415
        from trainer.data.order import Samples  # noqa: PLC0415
        from trainer.data.stream import Stream  # noqa: PLC0415
        from trainer.data.task_contract import (  # noqa: PLC0415
            blamed_on,
            blocks_of,
            sample_of,
            try_batch,
        )
        from trainer.distributed.by_name import freeze  # noqa: PLC0415
        from trainer.distributed.generators import seed  # noqa: PLC0415
        from trainer.distributed.precision import cast, dtype_of  # noqa: PLC0415
        from trainer.engine.initial import load_own  # noqa: PLC0415

    task = tasks.load(settings)
    yield f"{name}: has its methods; the metric is {task.metric}"
    if own := own_settings(type(task), settings):
        yield f"its own settings: {in_words(own)}"
    sets = {
        part: tasks.data(task, settings, train=part == "training") for part in ("training", "test")
    }
    for part, data in sets.items():
        if not len(data):
            raise Fault(Exit.DATA, f"task {name}: the {part} set is empty")
        yield f"data(train={part == 'training'}): {len(data):,} samples"
    seed(settings.seed)
    with blamed_on(name, "model()"):
        model = task.model()
    check_model(model, name)
    blocks_of(task, model, name)
    cast(model, dtype_of(settings))
    yield from load_own(model, task, settings)
    yield f"model(): {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters"
    if settings.freeze:
        yield freeze(model, settings.freeze)
    if others := [k for k, v in model.state_dict().items() if not isinstance(v, torch.Tensor)]:
        yield f"an export leaves out {', '.join(others[:3])}: it holds only tensors"
    for part, data in sets.items():
        second = min(1, len(data) - 1) if isinstance(data, Stream) else len(data) - 1
        two = Samples(torch.tensor([0, second]), torch.ones(2))
        loader = Loader(data, device=torch.device("cpu"), dtype=dtype_of(settings))
        with blamed_on(name, f"reading {part} samples"):
            batch = next(loader(iter([two])))
        if (tried := try_batch(task, model, batch, name=name, part=part)) is None:
            raise Fault(Exit.CONFIG, f"task {name}: the model returned None")
        losses, scores = tried
        yield (
            f"loss() and score(), {', '.join(scores)}: for each of two {part} samples; losses "
            f"{', '.join(f'{loss:.4g}' for loss in losses.tolist())}"
        )
        if part == "training":
            yield _backward(losses, model, name)
    yield _optimizer(task, model, settings, samples=len(sets["training"]))
    if made := sample_of(task, name, model.eval()):
        yield f"sample(): {', '.join(made)}"


def _backward(losses: "torch.Tensor", model: "nn.Module", name: str) -> str:
    """Do the backward pass; return a line about the parameters that it reaches."""
    from trainer.data.task_contract import blamed_on  # noqa: PLC0415

    with blamed_on(name, "the backward pass"):
        losses.sum().backward()
    named = dict(model.named_parameters())
    unused = [key for key, one in named.items() if one.grad is None]
    if len(unused) == len(named):
        raise Fault(Exit.CONFIG, f"task {name}: no parameter of the model has a gradient")
    return f"the backward pass reaches {len(named) - len(unused)} of {len(named)} parameters" + (
        f"; not {', '.join(unused[:3])}, which will not change" if unused else ""
    )


def _optimizer(task: "Task", model: "nn.Module", settings: Settings, *, samples: int) -> str:
    """Update the model as in the first step of a run; return a line about the optimiser."""
    from trainer.data.task_contract import (  # noqa: PLC0415
        blamed_on,
        check_gradients,
        own_of,
    )
    from trainer.distributed import optim  # noqa: PLC0415

    check_gradients(task, settings.task, [model])
    own = own_of(task, settings.task)
    optimizer = optim.build(model, settings, own)
    options = optim.options_of(optimizer)
    steps = settings.steps or math.ceil(settings.epochs * samples / settings.global_batch)
    rate = optim.learning_rate(0, steps, settings, own)
    optim.set_learning_rate(optimizer, rate, options, settings)
    with blamed_on(settings.task, "the optimiser's step"):
        optimizer.step()
    optim.check_state(optimizer, options, settings)
    rates = ", ".join(f"{group['lr']:.4g}" for group in optimizer.param_groups)
    return f"the optimiser: {type(optimizer).__name__}; first rate of each group: {rates}"


if __name__ == "__main__":
    sys.exit(main())
