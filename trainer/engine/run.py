"""The state of a training run on one rank, shared by loop, evaluation and checkpoints."""

import logging
import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.stateful import Stateful

from trainer import strategies, tasks
from trainer.checkpoint.find import Found
from trainer.checkpoint.saver import Saver
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Order, Samples, mix
from trainer.data.resident import free_memory, resident
from trainer.data.sets import Batch, Data, InMemory, Transformed, tokens_of
from trainer.data.stream import Stream
from trainer.data.task_contract import blamed_on
from trainer.distributed import optim
from trainer.distributed.generators import seed
from trainer.distributed.precision import LossScale, dtype_of
from trainer.distributed.runtime import Runtime
from trainer.models.ema import Average
from trainer.report.events import Report
from trainer.watch.throughput import Throughput
from trainer.watch.usage import memory_in_use

log = logging.getLogger("trainer")

_CPU = torch.device("cpu")


@dataclass
class Run:
    """The run after `step` optimiser steps, which have used `samples` samples of the stream.

    `parameters`: their number in the whole model. `fitness`: the figures of preflight. `bad`: the
    samples that could not be read, as (part, index). `extra`: objects saved and loaded with model and
    optimiser, by name. `identity`: what decides the result. `own`: the task's methods for the optimiser.
    `options`: those of the optimiser's groups when it was built. `metrics`: the names of the task's
    scores; the first is its `metric`. `saver`: None if the nodes share no folder. `save_began`: when
    the last save began. `unevaluated`: the checkpoint it resumed from, while that has no metric yet and
    an evaluation of its step is due. `frozen`: a few numbers of each frozen weight at the start.
    """

    settings: Settings
    runtime: Runtime
    report: Report
    task: tasks.Task
    strategy: strategies.Strategy
    training: Data
    test: Data
    saver: Saver | None
    parameters: int
    extra: dict[str, Stateful] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    samples: int = 0
    saved: str | None = None
    saved_step: int = 0
    unevaluated: Found | None = None
    fitness: dict[str, float] = field(default_factory=dict)
    throughput: Throughput = field(default_factory=Throughput)
    bad: set[tuple[str, int]] = field(default_factory=set)
    own: optim.Own = optim.NOTHING
    metrics: list[str] = field(default_factory=list)
    options: optim.Groups = field(init=False)
    save_began: float = field(default_factory=time.monotonic)
    frozen: list[Tensor] = field(default_factory=list)
    loss_scale: LossScale = field(init=False)
    average: Average | None = None

    def __post_init__(self) -> None:
        self.options = optim.options_of(self.strategy.optimizer)
        self.loss_scale = LossScale(self.settings)
        self.extra |= self.strategy.extra
        if self.settings.ema_decay:
            strategy, decay = self.strategy, self.settings.ema_decay
            self.average = Average(strategy.module, decay, stages=strategy.stages)
            self.extra["ema"] = self.average
        if self.settings.precision == "fp16":
            self.extra["loss_scale"] = self.loss_scale

    @property
    def batch(self) -> int:
        """Samples per optimiser step, over all ranks."""
        return self.runtime.sizing.batches.global_batch

    @property
    def saved_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser whose state this rank saves and loads."""
        return self.strategy.saved_optimizer or self.strategy.optimizer

    def update(self) -> None:
        """Update the weights. Replicas stay equal, also if the task's optimiser draws random numbers."""
        if self.own.optimizer is not None:
            seed(
                mix(self.settings.seed, self.step, "update", self.runtime.part), self.runtime.device
            )
        self.strategy.optimizer.step()

    def synchronize(self) -> None:
        """Complete all steps; make all ranks' weights equal, and their averages. No copy may go on."""
        self.strategy.synchronize()
        if self.average and self.runtime.mesh:
            strategies.broadcast_buffers(self.average, self.runtime.mesh)

    def wait_for_copy(self) -> None:
        """Return once a save has copied the weights, so that they may change."""
        if self.saver is not None:
            self.saver.wait_for_copy()

    @property
    def remaining(self) -> int:
        """The number of optimiser steps that are left."""
        return max(0, self.steps_from(self.step, self.samples) - self.step)

    def steps_from(self, step: int, samples: int) -> int:
        """Return the last step that the settings ask for, after `step` steps with `samples` samples.

        With epochs it depends on both: an earlier end, or another batch size, has made steps smaller.
        """
        if self.settings.steps is not None:
            return self.settings.steps
        left = self.settings.epochs * len(self.training) - samples
        return step + math.ceil(left / self.batch)

    def is_every(self, steps: int | None) -> bool:
        """Return whether something that happens every `steps` steps, never with 0, is due."""
        return bool(steps and self.step % steps == 0)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the step just taken is followed by an evaluation; by default it ends an epoch."""
        if self.settings.eval_steps is not None:
            return self.is_every(self.settings.eval_steps)
        return self.samples % len(self.training) < min(self.batch, self.samples)

    @property
    def order(self) -> Order:
        """The stream of training samples: whole epochs, or as many samples as the steps need."""
        length = len(self.training)
        end = self.samples + self.remaining * self.batch
        if self.settings.steps is None:
            end = min(end, max(self.samples, self.settings.epochs * length))
        # Only data that is read sample by sample, or transformed as a batch, draws random numbers.
        keyed = not self.is_in_memory or isinstance(self.training, Transformed)
        is_stream = isinstance(self.training, Stream)
        return Order(self.settings.seed, length, end, tokens_of(self.training), keyed, is_stream)

    @cached_property
    def is_in_memory(self) -> bool:
        """Whether the training set is indexed, not read sample by sample."""
        return isinstance(self.training, InMemory)

    @cached_property
    def training_batches(self) -> Loader:
        """The loader that brings training samples to this rank's device."""
        return self._loader(self.training, name="training")

    @cached_property
    def test_batches(self) -> Loader:
        """The loader that brings test samples to this rank's device; it keeps its workers."""
        return self._loader(self.test, name="test")

    def _loader(self, data: Data, *, name: str) -> Loader:
        device = self.runtime.device
        data, reason = resident(data, device, free=free_memory(device))
        if reason and self.runtime.is_main:
            log.info("the %s set %s", name, reason)
        return Loader(
            data,
            device=device,
            workers=self.settings.workers,
            prefetch=self.settings.prefetch,
            dtype=dtype_of(self.settings),
            channels_last=self.settings.channels_last,
            # A test sample has no key, which would augment it; it is the same in every evaluation.
            base=mix(self.settings.seed, name),
        )


@dataclass
class Since:
    """The last step event: its monotonic time `began` and the count `samples` then.

    Since then: `data_s` seconds of waiting for data, and samples with a total `weight`.
    """

    began: float
    samples: int
    data_s: float = 0.0
    weight: float = 0.0

    def report(
        self, run: Run, *, steps: int, epoch: int, loss: float, norm: torch.Tensor, rate: float
    ) -> "Since":
        """Report a step event, with the figures since the last one; return the next `Since`."""
        seconds = time.monotonic() - self.began
        run.report(
            "step",
            step=run.step,
            steps=steps,
            epoch=epoch,
            loss=loss,
            grad_norm=float(norm),
            lr=rate,
            samples=run.samples,
            samples_per_s=(run.samples - self.samples) / seconds,
            **run.throughput.rates(self.weight, seconds),
            seconds=seconds,
            data_s=self.data_s,
            memory=memory_in_use(run.runtime.device),
        )
        return Since(self.began + seconds, run.samples)


def example(
    data: Data,
    settings: Settings,
    count: int,
    *,
    device: torch.device = _CPU,
    last: int = 0,
    part: str = "training",
) -> Batch:
    """Return the first sample `count` times, or the first `count` samples up to `last`, repeated.

    Raises Fault(64) if they cannot be read; `part` is "training" or "test".
    """
    samples = Samples(torch.arange(count).clamp(max=last), torch.ones(count))
    loader = Loader(
        data,
        device=device,
        dtype=dtype_of(settings),
        channels_last=settings.channels_last,
    )
    with blamed_on(settings.task, f"reading {part} samples"):
        return next(loader(iter([samples])))
