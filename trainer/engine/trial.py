"""Try the task on one batch of each set before the first step, so that a wrong one costs nothing.

try_task(run)
"""

import torch

from trainer.data.loader import Loader
from trainer.data.order import Samples
from trainer.data.task_contract import blamed_on, try_batch
from trainer.distributed.precision import dtype_of
from trainer.engine.run import Run


@torch.no_grad()
def try_task(run: Run) -> None:
    """Pass a micro-batch of each set, its first sample repeated, through model, loss and score.

    All ranks call it together. Raises Fault(64) when a method raises or returns what it should not.
    """
    count = run.runtime.sizing.batches.micro
    repeated = Samples(torch.zeros(count, dtype=torch.long), torch.ones(count))
    run.strategy.module.eval()
    for data, part in ((run.training, "training"), (run.test, "test")):
        loader = Loader(data, device=run.runtime.device, dtype=dtype_of(run.settings))
        with blamed_on(run.settings.task, f"reading {part} samples"):
            batch = next(loader(iter([repeated])))
        try_batch(run.task, run.strategy.forward, batch, name=run.settings.task, part=part)
    run.strategy.module.train()
