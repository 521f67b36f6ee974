"""The Kubernetes kind of a launcher's job: how `python -m k8s` reads, suspends and scales one.

Each launcher of a cluster fills a `JobKind` in its folder's `job_kind.py`, with the helpers below.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Object = dict[str, Any]
Api = tuple[str, str]  # apiVersion and kind


class Phase(StrEnum):
    """The phase of a job, whatever its controller calls it."""

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
    """A job's phase, the reason for it, the number of restarts, and the time of its end."""

    phase: Phase
    reason: str = ""
    restarts: int = 0
    ended_at: str | None = None


@dataclass(frozen=True)
class JobKind:
    """What the verbs need to know about the job objects of one launcher.

    read: returns the state of a job object.
    node: returns the node number of a pod, None when it is not known.
    install: for each API group, what to install in a cluster that does not serve it.
    suspend_field: path of the field that suspends a job; Kueue needs one as well.
    suspend_command: where there is no such field, returns the object to apply instead; its arguments are
        the job and whether to suspend (True) or to resume (False).
    elastic: returns the least and the most nodes of a job, None for a fixed number.
    node_counts: JSON pointers to the fields that `scale` sets to the number of nodes.
    made_job: returns the name of the batch/v1 Job to scale where the job object refuses the change.
    requires: other kinds that the cluster must serve; `doctor` looks for them.
    companion_kinds: kinds that this launcher alone renders with a job; deleted with it.
    rights: other requests that the verbs make: API version, kind, RBAC verbs, and the objects' names,
        with {} for the job's.
    label_domains: domains of labels that the controller sets, refused in a job file.
    """

    launcher: str
    api_version: str
    kind: str
    read: Callable[[Object], State]
    node: Callable[[Object], int | None]
    install: Mapping[str, str] = field(default_factory=dict)
    suspend_field: tuple[str, ...] = ()
    suspend_command: Callable[[Object, bool], Object] | None = None
    elastic: Callable[[Object], tuple[int, int] | None] = lambda _: None
    node_counts: tuple[str, ...] = ()
    made_job: Callable[[Object], str] | None = None
    requires: tuple[Api, ...] = ()
    companion_kinds: tuple[Api, ...] = ()
    rights: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = ()
    label_domains: tuple[str, ...] = ()


def nodes_in(template: Object) -> tuple[int, int] | None:
    """Return the least and the most nodes by a pod template's PET_NNODES, None for a fixed number."""
    values = [
        variable.get("value", "")
        for container in template.get("spec", {}).get("containers", [])
        for variable in container.get("env", [])
        if variable["name"] == "PET_NNODES"
    ]
    least, colon, most = (values or [""])[0].partition(":")
    return (int(least), int(most)) if colon else None


def condition(job: Object, *types: str) -> Object | None:
    """Return the first of the conditions `types` that is true."""
    found = {c["type"]: c for c in job.get("status", {}).get("conditions") or []}
    return next((found[t] for t in types if found.get(t, {}).get("status") == "True"), None)


def stopped(
    job: Object,
    restarts: int = 0,
    *,
    succeeded: tuple[str, ...],
    failed: tuple[str, ...] = ("Failed",),
    suspend_field: tuple[str, ...] = ("spec", "suspend"),
) -> State | None:
    """Return the state of a job that has ended, by its conditions, or is suspended; else None."""
    for types, phase in ((succeeded, Phase.SUCCEEDED), (failed, Phase.FAILED)):
        if found := condition(job, *types):
            at = found.get("lastUpdateTime") or found.get("lastTransitionTime")
            return State(phase, reason_and_message(found), restarts, at)
    value: Any = job
    for key in suspend_field:
        value = value.get(key) or {}
    return State(Phase.SUSPENDED, ".".join(suspend_field), restarts) if value else None


def reason_and_message(found: Object) -> str:
    return ": ".join(filter(None, (found.get("reason"), found.get("message"))))


def label_number(name: str) -> Callable[[Object], int | None]:
    """Return a function that reads a pod's node number from its label `name`."""

    def read(pod: Object) -> int | None:
        text = pod["metadata"].get("labels", {}).get(name, "")
        return int(text) if text.isdecimal() else None

    return read
