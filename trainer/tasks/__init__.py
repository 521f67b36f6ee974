"""The tasks, one file each. A task builds the model and the data, and computes the loss and a metric.

A built-in task is the class `Task` in a file of this folder: TRAINER_TASK=digits is digits.py. Any other
task is a class on the Python path: TRAINER_TASK=package.module:Class.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset

from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import own_settings
from trainer.config.settings import Settings
from trainer.data.sets import Data, InMemory, pass_on
from trainer.data.stream import Stream
from trainer.data.task_contract import blamed_on, check_data, check_methods
from trainer.distributed.generators import seed


class Task(Protocol):
    """What the trainer needs from a task. The class is called with the settings.

    `metric` names the mean of `score`, e.g. accuracy, where a sample that was predicted right scores
    1.0. A task may also have the methods of `trainer.distributed.optim.Own`.
    """

    metric: str

    def model(self) -> nn.Module:
        """Return the model with its initial weights; the trainer has seeded torch."""
        ...

    def data(self, *, train: bool) -> Data:
        """Return the training or the test set.

        If the data is in memory, only one rank of a machine calls this; the other ranks share its data.
        """
        ...

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return one loss per sample, shape (n,)."""
        ...

    def score(self, outputs: Any, targets: Any) -> Any:
        """Return one score per sample, shape (n,); their mean over the test set is the metric.

        Several scores may be returned: see `trainer.data.task_contract.scores_of`.
        """
        ...


def load(settings: Settings) -> Task:
    """Return the task that the settings name.

    Raises Fault(64) when it cannot be imported or created, or lacks a method.
    """
    module_name, _, attribute = settings.task.partition(":")
    if not attribute:
        module_name, attribute = f"{__name__}.{settings.task.replace('-', '_')}", "Task"
    elif (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with blamed_on(settings.task, f"the import of {module_name}"):
            module = import_module(module_name)
    except Fault as fault:
        if isinstance(error := fault.__cause__, ModuleNotFoundError):
            raise Fault(
                Exit.CONFIG,
                f"TRAINER_TASK={settings.task!r}: no module named {error.name!r} on the Python path",
            ) from error
        raise
    if not hasattr(module, attribute):
        raise Fault(
            Exit.CONFIG, f"TRAINER_TASK={settings.task!r}: {module_name} has no {attribute!r}"
        )
    kind = getattr(module, attribute)
    own = own_settings(kind, settings)
    seed(settings.seed)
    with blamed_on(settings.task, f"{attribute}(settings)"):
        task: Task = kind(settings) if own is None else kind(settings, own)
    if ":" in settings.task:
        check_methods(task, settings.task)
    return task


def data(task: Task, settings: Settings, *, train: bool) -> Data:
    """Return the training or the test set. Raises Fault(64), or Fault(65) for a missing file.

    Both calls find the same random state: a task that splits its samples at random gets the same split
    in both, on every rank, and after a restart.
    """
    seed(settings.seed)
    with blamed_on(settings.task, f"data(train={train})"):
        made = task.data(train=train)
        if hasattr(made, "__getitems__") and isinstance(made, InMemory):
            # A Dataset of Hugging Face's datasets, whose batch() is not ours. A Subset has none.
            made = Subset(made, range(len(made)))  # type: ignore[arg-type]
        if isinstance(made, Subset):
            pass_on(made)
    check_data(made, settings.task, train=train)
    return Stream(made, seed=settings.seed) if isinstance(made, IterableDataset) else made
