"""How a job of a launcher is read: its object on the cluster, folded into one state.

Each launcher of a cluster has a `status.py` that fills a `Kind` with these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Object = dict[str, Any]


class Phase(StrEnum):
    """Where a job is."""

    PENDING = "pending"
    SUSPENDED = "suspended"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


@dataclass(frozen=True)
class State:
    """A job's phase, why it is in it, and how often the job was started anew."""

    phase: Phase
    reason: str = ""
    restarts: int = 0
    ended_at: str | None = None


@dataclass(frozen=True)
class Change:
    """What makes a job larger or smaller: JSON Patch operations for an object of it."""

    api_version: str
    kind: str
    name: str
    operations: list[Object]


@dataclass(frozen=True)
class Kind:
    """What is known of a launcher's job object.

    `suspend` is the path of the field that stops its pods, empty where a Command of Volcano does;
    `elastic` the least and the most nodes of an elastic job, None for a job of fixed size; `scale`
    what gives it another number of nodes, the first change that the cluster takes.
    """

    launcher: str
    api_version: str
    kind: str
    suspend: tuple[str, ...]
    read: Callable[[Object], State]
    node: Callable[[Object], int | None]
    elastic: Callable[[Object], tuple[int, int] | None]
    scale: Callable[[Object, int], list[Change]]


def nodes_in(template: Object) -> tuple[int, int] | None:
    """Return the least and the most nodes that a pod's template says, None when they are fixed."""
    names = [
        variable.get("value", "")
        for container in template.get("spec", {}).get("containers", [])
        for variable in container.get("env", [])
        if variable["name"] == "PET_NNODES"
    ]
    least, colon, most = (names or [""])[0].partition(":")
    return (int(least), int(most)) if colon else None


def condition(job: Object, *types: str) -> Object | None:
    """Return the first of the conditions `types` that is true."""
    held = {c["type"]: c for c in job.get("status", {}).get("conditions") or []}
    return next((held[t] for t in types if held.get(t, {}).get("status") == "True"), None)


def ended(found: Object, phase: Phase, restarts: int = 0) -> State:
    """Return the state of a job that a condition says has ended."""
    at = found.get("lastUpdateTime") or found.get("lastTransitionTime")
    return State(phase, words(found), restarts, at)


def words(found: Object) -> str:
    return ": ".join(filter(None, (found.get("reason"), found.get("message"))))


def label_number(name: str) -> Callable[[Object], int | None]:
    """Return what reads a pod's node number from its label `name`."""

    def read(found: Object) -> int | None:
        text = found["metadata"].get("labels", {}).get(name, "")
        return int(text) if text.isdecimal() else None

    return read
