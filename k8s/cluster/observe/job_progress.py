"""A job's progress and what its ranks use: from the events in its logs and the cluster's metrics.

found = read_progress(cluster, pods)
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from k8s.base.quantity import parse
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Missing
from k8s.cluster.client.objects import NotServed
from k8s.cluster.observe import logs
from k8s.cluster.state import Pod
from trainer.config.exits import Fault

METRICS = ("metrics.k8s.io/v1beta1", "PodMetrics")
_MOST_PODS = 8  # pods whose logs are read
_LINES = 200  # of each log, from its end
_LONGEST = 20  # characters of a cause's name
_LARGEST = 1e15  # a larger figure cannot come from a run
_TIMEOUT = 5.0  # seconds for all these logs, because the log of a lost machine never comes


@dataclass(frozen=True)
class Progress:
    """The main rank's newest step event; `seconds_left` is an estimate.

    For the user's own program, only what its event lines say is known.
    """

    step: int
    steps: int | None
    loss: float | None
    samples_per_s: float | None
    seconds_left: float | None
    goodput: float | None = None  # share of the wall time of all attempts that new steps took
    spent_s: dict[str, float] = field(default_factory=dict)  # wall time by cause


@dataclass(frozen=True)
class Usage:
    """What a rank uses: cores, its device's busy share and memory in bytes. None: not measured."""

    rank: int
    cpu: float | None
    busy: float | None
    memory: int | None
    memory_of: int | None


@dataclass(frozen=True)
class LogEvents:
    """The newest events in a job's logs; `problem` says why a log could not be read."""

    progress: Progress | None = None
    ranks: tuple[Usage, ...] = ()
    problem: str | None = None


def read_progress(cluster: Cluster, pods: Sequence[Pod]) -> LogEvents:
    """Return the newest events of the main rank, which is on node 0 unless the job is elastic."""
    problem = None
    end = time.monotonic() + min(_TIMEOUT, cluster.timeout)
    # A Job keeps its failed pods: there may be many of node 0.
    for pod in [pod for pod in pods if pod.phase in ("Running", "Succeeded")][:_MOST_PODS]:
        if (left := end - time.monotonic()) <= 0:
            break
        try:
            tail = {"tailLines": _LINES}
            text = logs.text(replace(cluster, timeout=left), pod.name, pod.container, tail)
            found = newest_events(text.splitlines())
        except Fault as fault:
            problem = problem or f"the log of {pod.name} cannot be read: {fault}"
        else:
            if found.progress is not None:
                return found
    return LogEvents(problem=problem)


def newest_events(lines: list[str]) -> LogEvents:
    """Return the newest step event and the newest usage event among a log's lines."""
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        event = _event(line)
        found.setdefault(str(event.get("event")), event)
        if {"step", "usage"} <= found.keys():
            break
    step, usage = found.get("step"), found.get("usage", {})
    listed = usage.get("ranks")
    ranks = tuple(
        Usage(
            rank,
            _figure(one.get("cpu")),
            _figure(one.get("busy")),
            _whole(one.get("memory")) if one.get("memory_of") else None,  # else the host's
            _whole(one.get("memory_of")),
        )
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and (rank := _whole(one.get("rank"))) is not None
    )
    return LogEvents(_progress(step) if step else None, ranks)


def _progress(event: dict[str, Any]) -> Progress | None:
    names = ("step", "steps", "samples", "samples_per_s", "loss", "goodput")
    values = (event.get(name) for name in names)
    done, steps, samples, rate, loss, goodput = map(_figure, values)
    if done is None:
        return None
    seconds = None
    if done and rate and steps is not None and samples is not None:
        seconds = _figure(samples / done * (steps - done) / rate)
    spent = event.get("spent_s")
    by_cause = {
        cause: used
        for cause, value in (spent.items() if isinstance(spent, dict) else ())
        if cause.isalpha() and len(cause) <= _LONGEST and (used := _figure(value)) is not None
    }
    of = None if steps is None else int(steps)
    return Progress(int(done), of, loss, rate, seconds, goodput, by_cause)


def _figure(value: object) -> float | None:
    """Return a number of an event, or None if no run can have it: a log may have any text."""
    return value if isinstance(value, int | float) and abs(value) < _LARGEST else None


def _whole(value: object) -> int | None:
    found = _figure(value)
    return None if found is None else int(found)


def _event(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pod_metrics(cluster: Cluster, name: str) -> dict[str, tuple[float, int]] | None:
    """Return the cores and the bytes that each of a job's pods uses, by the pod's name.

    None if the cluster serves no metrics, or if the user may not read them.
    """
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "trainer"}
    try:
        items = objects.find(cluster, *METRICS, labels)
    except (NotServed, Forbidden, Missing):
        return None
    found = {}
    for item in items:
        used = [container.get("usage", {}) for container in item.get("containers") or []]
        cores, size = (
            sum(parse(str(one.get(kind, "0"))) for one in used) for kind in ("cpu", "memory")
        )
        found[item["metadata"]["name"]] = float(cores), int(size)
    return found
