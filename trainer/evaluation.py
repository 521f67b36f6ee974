"""Evaluation: the task's loss and metric over the test set, every sample counted once."""

import torch

from trainer.data import evaluation_shares
from trainer.exits import Exit, Fault
from trainer.run import Run
from trainer.runtime import total
from trainer.stop import Stop


@torch.no_grad()
def evaluate(run: Run, stop: Stop) -> float | None:
    """Return the metric over the test set, every sample counted once; None when stopped meanwhile."""
    runtime = run.runtime
    sums = torch.zeros(3, dtype=torch.float64)
    run.strategy.module.eval()
    shares = evaluation_shares(len(run.test), runtime.sizing.batches, runtime.data_rank)
    for batch in run.batches(run.test, shares):
        if stop.agreed():
            return None
        outputs = run.strategy.forward(batch.inputs)
        losses = run.task.loss(outputs, batch.targets)
        scores = run.task.score(outputs, batch.targets)
        counted = batch.weights > 0
        sums += (
            torch.stack([losses[counted].sum(), scores[counted].sum(), counted.sum()])
            .double()
            .cpu()
        )
    run.strategy.module.train()
    loss, score, count = total(sums.tolist(), runtime)
    if count != len(run.test):
        raise Fault(
            Exit.CODE, f"evaluation counted {count:.0f} samples of {len(run.test)}: a defect here"
        )
    metric = score / count
    run.report(
        "eval",
        step=run.step,
        loss=loss / count,
        metric=run.task.metric,
        **{run.task.metric: metric},
        samples=int(count),
    )
    return metric
