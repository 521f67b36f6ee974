"""How far a job has come and what its ranks use: by its own words, and by the cluster's metrics.

seen = look(cluster, pods)
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from k8s.base.quantity import parse
from k8s.cluster import logs
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Missing
from k8s.cluster.client.objects import NotServed
from k8s.cluster.state import Pod
from trainer.config.exits import Fault

METRICS = ("metrics.k8s.io/v1beta1", "PodMetrics")
_ASKED = 8  # pods at most whose logs are looked through
_LINES = 200  # of the main rank's log, in which its newest step is looked for
# Seconds for all these logs: those of a lost machine cannot be read, and all else can be told.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Progress:
    """What the main rank last said of the training; `seconds_left` is an estimate."""

    step: int
    steps: int
    loss: float | None
    samples_per_s: float
    seconds_left: float | None


@dataclass(frozen=True)
class Usage:
    """What a rank uses: cores, its device's busy share and bytes; None where it does not tell."""

    rank: int
    cpu: float | None
    busy: float | None
    memory: int | None
    memory_of: int | None


@dataclass(frozen=True)
class Said:
    """The newest of what the job said of itself; `problem` is why a log could not be read."""

    progress: Progress | None = None
    ranks: tuple[Usage, ...] = ()
    problem: str | None = None


def look(cluster: Cluster, pods: Sequence[Pod]) -> Said:
    """Return what the job last said: the main rank's words, which is on node 0 unless it is elastic."""
    problem = None
    end = time.monotonic() + min(_PATIENCE, cluster.timeout)
    for pod in pods[:_ASKED]:
        left = end - time.monotonic()
        if pod.phase not in ("Running", "Succeeded") or left <= 0:
            continue
        try:
            said = newest(logs.tail(replace(cluster, timeout=left), pod, lines=_LINES))
        except Fault as fault:
            problem = problem or f"what {pod.name} says cannot be read: {fault}"
        else:
            if said.progress is not None:
                return said
    return Said(problem=problem)


def newest(lines: list[str]) -> Said:
    """Return the newest step and the newest use of devices among a log's lines."""
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        event = _event(line)
        found.setdefault(str(event.get("event")), event)
        if {"step", "usage"} <= found.keys():
            break
    step, usage = found.get("step"), found.get("usage", {})
    ranks = tuple(
        Usage(one["rank"], one.get("cpu"), one.get("busy"), one.get("memory"), one.get("memory_of"))
        for one in usage.get("ranks", [])
    )
    return Said(_progress(step) if step else None, ranks)


def _progress(event: dict[str, Any]) -> Progress:
    done, rate = event["step"], event["samples_per_s"]
    left = event["steps"] - done
    seconds = event["samples"] / done * left / rate if done and rate else None
    return Progress(done, event["steps"], event["loss"], rate, seconds)


def _event(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def metrics(cluster: Cluster, name: str) -> dict[str, tuple[float, int]] | None:
    """Return the cores and the bytes that each of a job's pods uses, by the pod's name.

    None when the cluster measures nothing, or whoever asks may not see it.
    """
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "trainer"}
    try:
        items = objects.find(cluster, *METRICS, labels)
    except (NotServed, Forbidden, Missing):
        return None
    return {item["metadata"]["name"]: _sum(item.get("containers") or []) for item in items}


def _sum(containers: list[dict[str, Any]]) -> tuple[float, int]:
    used = [container.get("usage", {}) for container in containers]
    cores = sum(parse(str(one.get("cpu", "0"))) for one in used)
    size = sum(parse(str(one.get("memory", "0"))) for one in used)
    return float(cores), int(size)
