"""Sends a run's figures to an experiment tracker, from a separate process; one file per tracker.

TRAINER_TRACKER=mlflow MLFLOW_TRACKING_URI=http://mlflow:5000 python -m trainer
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

END = 30  # seconds that a tracker has after the run's end; it may not have started yet


@dataclass(frozen=True)
class Start:
    """How a tracker shows a run. `id` is the same for all attempts of the run."""

    id: str
    project: str
    name: str
    folder: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Figures:
    """Figures by name, after a step, at a time in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """A run of a tracker: `Run(start)` in its file starts one, or continues the one with `start.id`."""

    def send(self, figures: Sequence[Figures]) -> None: ...

    def finish(self, code: int) -> None:
        """End it; `code` is the run's exit code."""
        ...
