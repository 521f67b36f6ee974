"""What Prometheus reads of a run: the newest figures of its events, by name.

figures = Figures(Path("runs/digits"))
figures.take({"event": "step", "time": 1.7e9, "step": 3, "loss": 0.5})
as_text(figures.families())     # Prometheus' text format: "muster_step 3.0" and so on

Our trainer serves them with prometheus_client (trainer/report/prometheus.py). The launcher of another
program serves them with this module, because it has only the standard library.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.report.events import Event, is_number, scores


@dataclass(frozen=True)
class Figure:
    """A gauge: `field` of the last `event` that had it, and that had `action` if this is set."""

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
    Figure(
        "muster_peak_share",
        "step",
        "peak_share",
        "the model's operations as a share of the devices' peak",
    ),
    Figure(
        "muster_slowest_rank_seconds", "usage", "slowest_s", "own work per step of the slowest rank"
    ),
    Figure(
        "muster_middle_rank_seconds", "usage", "middle_s", "median of the ranks' own work per step"
    ),
    Figure("muster_goodput", "step", "goodput", "share of the wall time that went into new steps"),
    Figure("muster_wall_seconds", "step", "wall_s", "wall time of all attempts so far"),
    Figure("muster_attempt", "launch", "attempt", "which attempt of the run this is, from 1 on"),
    Figure("muster_last_step_time_seconds", "step", "time", "when the last step event was written"),
    Figure(
        "muster_last_saved_time_seconds",
        "checkpoint",
        "time",
        "when the last checkpoint was saved",
        "saved",
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
# The other metrics: name, label, description.
EVALUATION = ("muster_eval_metric", "metric", "the task's metric over the test set")
CHECKPOINTS = ("muster_checkpoints_total", "action", "checkpoints saved, refused or resumed from")
FAULTS = ("muster_faults_total", "kind", "fault events, by kind")
SPENT = ("muster_spent_seconds", "cause", "seconds of the wall time of all attempts, by cause")
DISK = (
    ("muster_disk_free_bytes", "free bytes of the run folder's volume"),
    ("muster_disk_bytes", "size of the run folder's volume in bytes"),
)
_KINDS = ("bad_sample", "hang", "nonfinite", "rolled_back", "stopped", "straggler")
_MOST = 50  # values of a label: the events of a user's program may name anything
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass
class Family:
    """A metric: a gauge, or a counter if `name` ends with _total. `values` has one per label value."""

    name: str
    text: str
    label: str = ""
    values: dict[str, float] = field(default_factory=dict)


class Figures:
    """The newest figures. A scrape sees either all gauges of an event or none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gauges: dict[str, float] = {}
        self._scores: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._checkpoints: dict[str, float] = {}
        # 0: Prometheus does not count the first increase of a new series.
        self._faults = dict.fromkeys(_KINDS, 0.0)

    def take(self, event: Event) -> None:
        """Keep the figures of an event."""
        kind = event["event"]
        values = {
            one.name: float(event[one.field])
            for one in FIGURES
            if one.event == kind
            and one.action in (None, event.get("action"))
            and is_number(event.get(one.field))
        }
        self._gauges = self._gauges | values
        if kind == "eval":
            self._scores = _bounded(self._scores | _numbers(scores(event)))
        elif kind == "step":
            self._spent = _numbers(event.get("spent_s", {}))
        elif kind == "checkpoint":
            self._checkpoints = _counted(self._checkpoints, str(event.get("action")))
        elif kind == "fault":
            self._faults = _counted(self._faults, str(event.get("kind")))

    def families(self) -> Iterator[Family]:
        """Yield the metrics that have a value now."""
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._folder)
            for (name, text), size in zip(DISK, (disk.free, disk.total), strict=True):
                yield Family(name, text, values={"": size})
        gauges = self._gauges
        for figure in FIGURES:
            if figure.name in gauges:
                yield Family(figure.name, figure.text, values={"": gauges[figure.name]})
        labelled = (EVALUATION, SPENT, CHECKPOINTS, FAULTS)
        values = (self._scores, self._spent, self._checkpoints, self._faults)
        for (name, label, text), by_label in zip(labelled, values, strict=True):
            yield Family(name, text, label, by_label)


def as_text(families: Iterable[Family]) -> str:
    """Return metrics in Prometheus' text format."""
    lines = []
    for one in families:
        kind = "counter" if one.name.endswith("_total") else "gauge"
        lines += [f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {kind}"]
        for value, figure in one.values.items():
            labels = f'{{{one.label}="{value.translate(_ESCAPES)}"}}' if one.label else ""
            lines.append(f"{one.name}{labels} {float(figure)!r}")
    return "".join(f"{line}\n" for line in lines)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _counted(counts: dict[str, float], key: str) -> dict[str, float]:
    return _bounded(counts | {key: counts.get(key, 0.0) + 1})


def _bounded(values: dict[str, float]) -> dict[str, float]:
    return dict(list(values.items())[:_MOST])
