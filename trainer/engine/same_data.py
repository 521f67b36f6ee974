"""Check that all ranks have the same data: one that a task has split by rank would be split twice.

check_same_data(run)
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch
from trainer.distributed.generators import seed
from trainer.distributed.messages import from_all
from trainer.distributed.tensors import leaves
from trainer.engine.run import Run, example


def check_same_data(run: Run) -> None:
    """Compare length and first sample of each set over the ranks, together. Raises Fault(64)."""
    if run.runtime.control is None:
        return
    found: list[list[float]] = []
    for data, part in ((run.training, "training"), (run.test, "test")):
        read = []
        for _ in range(2):
            seed(run.settings.seed)
            read.append(_numbers_of(example(data, run.settings, 1, part=part)))
        # One that still differs draws from a generator of its own, and cannot be compared.
        found += [[len(data)], read[0] if read[0] == read[1] else []]
    every = from_all(found, run.runtime, list[list[float]])
    for rank, numbers in enumerate(every):
        for place, (own, other) in enumerate(zip(every[0], numbers, strict=True)):
            is_length = place % 2 == 0
            if own != other if is_length else own and other and not _are_close(own, other):
                what = "length" if is_length else "first sample"
                raise Fault(
                    Exit.CONFIG,
                    f"task {run.settings.task}: data(train={place < 2}) has another {what} on rank "
                    f"{rank} than on rank 0; wanted: the whole set on every rank, because the trainer "
                    "splits it",
                )


def _numbers_of(batch: Batch) -> list[float]:
    """Return size, sum and sum of squares of each tensor of a batch."""
    numbers: list[float] = []
    for tensor in leaves((batch.inputs, batch.targets)):
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            values = (tensor.abs() if tensor.is_complex() else tensor).double()
            values = values.nan_to_num(0.0, 0.0, 0.0)
            numbers += [values.numel(), float(values.sum()), float(values.square().sum())]
    return numbers


def _are_close(own: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether they differ by no more than rounding on machines of different kinds."""
    alike = partial(math.isclose, rel_tol=1e-5)
    return len(own) == len(other) and all(map(alike, own, other))
