"""Serve a run's metrics on a port of every node, for Prometheus (TRAINER_METRICS_PORT).

TRAINER_METRICS_PORT=9400 python -m trainer &  curl localhost:9400/metrics
"""

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trainer.report.events import Event, scores
from trainer.report.metrics_server import served

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Figure:
    """A gauge: `field` of the last `event` that had it, of those with `action` if it is set."""

    name: str
    event: str
    field: str
    text: str
    action: str | None = None


FIGURES = (
    Figure("muster_step", "step", "step", "optimiser steps done"),
    Figure("muster_steps", "step", "steps", "optimiser steps that the run will take in all"),
    Figure("muster_epoch", "step", "epoch", "epoch of the last step, from 0 on"),
    Figure("muster_loss", "step", "loss", "mean training loss of the global batch"),
    Figure("muster_grad_norm", "step", "grad_norm", "norm of the gradient, before clipping"),
    Figure("muster_learning_rate", "step", "lr", "learning rate"),
    Figure("muster_samples", "step", "samples", "training samples used"),
    Figure("muster_samples_per_second", "step", "samples_per_s", "training samples per second"),
    Figure("muster_tokens_per_second", "step", "tokens_per_s", "training tokens per second"),
    Figure(
        "muster_flops_per_second",
        "step",
        "flops_per_s",
        "floating-point operations of the model per second, on all ranks",
    ),
    Figure("muster_peak_share", "step", "peak_share", "those as a share of the devices' peak"),
    Figure(
        "muster_slowest_rank_seconds", "usage", "slowest_s", "own work per step of the slowest rank"
    ),
    Figure("muster_middle_rank_seconds", "usage", "middle_s", "the ranks' median of it"),
    Figure("muster_goodput", "step", "goodput", "share of the wall time that went into new steps"),
    Figure("muster_wall_seconds", "step", "wall_s", "wall time of all attempts so far"),
    Figure("muster_attempt", "launch", "attempt", "which attempt of the run this is, from 1 on"),
    Figure("muster_last_step_time_seconds", "step", "time", "when the last step was reported"),
    Figure(
        "muster_last_saved_time_seconds", "checkpoint", "time", "when the last was saved", "saved"
    ),
    Figure("muster_eval_loss", "eval", "loss", "mean loss over the test set"),
    Figure("muster_checkpoint_step", "checkpoint", "step", "step of the last checkpoint event"),
    Figure(
        "muster_checkpoint_blocked_seconds",
        "checkpoint",
        "blocked_s",
        "seconds that training waited for the last checkpoint",
    ),
    Figure(
        "muster_checkpoint_seconds",
        "checkpoint",
        "seconds",
        "seconds that the last checkpoint took",
    ),
    Figure("muster_checkpoint_bytes", "checkpoint", "bytes", "bytes of the last checkpoint"),
)
# Name, label and description of the metrics that are not such a gauge.
EVALUATION = ("muster_eval_metric", "metric", "the task's metric over the test set")
CHECKPOINTS = ("muster_checkpoints_total", "action", "checkpoints saved, refused or resumed from")
FAULTS = ("muster_faults_total", "kind", "fault events, by kind")
DISK = (
    ("muster_disk_free_bytes", "free bytes of the run folder's volume"),
    ("muster_disk_bytes", "all bytes of that volume"),
)
_KINDS = ("bad_sample", "hang", "nonfinite", "rolled_back", "stopped", "straggler")


class _Latest(Collector):
    """The gauges. A scrape sees all fields of an event, or none of them yet."""

    def __init__(self, run_folder: Path) -> None:
        self.values: dict[str, float] = {}
        self._folder = run_folder

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._folder)
            for (name, text), size in zip(DISK, (disk.free, disk.total), strict=True):
                yield GaugeMetricFamily(name, text, size)
        values = self.values
        for figure in FIGURES:
            if figure.name in values:
                yield GaugeMetricFamily(figure.name, figure.text, values[figure.name])


@contextlib.contextmanager
def serving(port: int, run_folder: Path) -> Iterator[Callable[[Event], None]]:
    """Serve the events that the yielded function gets as metrics on `port`, at any path.

    A port that is taken costs a warning, not the run.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    latest = _Latest(run_folder)
    registry.register(latest)
    metric = Gauge(EVALUATION[0], EVALUATION[2], [EVALUATION[1]], registry=registry)
    checkpoints = Counter(CHECKPOINTS[0], CHECKPOINTS[2], [CHECKPOINTS[1]], registry=registry)
    faults = Counter(FAULTS[0], FAULTS[2], [FAULTS[1]], registry=registry)
    for fault in _KINDS:
        faults.labels(
            fault
        )  # 0: Prometheus does not count the first of a series that was not there

    def take(event: Event) -> None:
        kind = event["event"]
        values = {
            one.name: event.get(one.field)
            for one in FIGURES
            if one.event == kind and one.action in (None, event.get("action"))
        }
        latest.values = latest.values | {k: v for k, v in values.items() if v is not None}
        if kind == "eval":
            for name, value in scores(event).items():
                metric.labels(name).set(value)
        elif kind == "checkpoint":
            checkpoints.labels(event["action"]).inc()
        elif kind == "fault":
            faults.labels(event["kind"]).inc()

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(served(registry, port))
        except OSError as error:
            log.warning(
                "TRAINER_METRICS_PORT=%s: %s; nothing is served there", port, error.strerror
            )
        yield take
