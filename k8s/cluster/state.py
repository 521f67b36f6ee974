"""One normalised state for the jobs of every launcher, and what their pods say. Pure.

Each launcher's folder has a `status.py` that knows its controller: which object it is, how to read it,
and which pod is which node.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from trainer.exits import MEANINGS, Exit, Fault, combine

Object = dict[str, Any]


class Phase(StrEnum):
    """Where a job is."""

    PENDING = "pending"
    SUSPENDED = "suspended"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True)
class State:
    """A job's phase, why it is in it, and how often the job was started anew."""

    phase: Phase
    reason: str = ""
    restarts: int = 0
    ended_at: str | None = None


@dataclass(frozen=True)
class Kind:
    """What is known of a launcher's job object."""

    launcher: str
    api_version: str
    kind: str
    suspend: tuple[str, ...]
    read: Callable[[Object], State]
    node: Callable[[Object], int | None]


# A launcher's API may be missing in a cluster; these are asked for in this order.
LAUNCHERS = ("job", "jobset", "pytorchjob", "trainjob", "volcano")


def kinds() -> list[Kind]:
    """Return every launcher's kind of job."""
    return [import_module(f"k8s.templates.{name}.status").KIND for name in LAUNCHERS]


def condition(job: Object, *types: str) -> Object | None:
    """Return the first of the conditions `types` that is true."""
    held = {c["type"]: c for c in job.get("status", {}).get("conditions") or []}
    return next((held[t] for t in types if held.get(t, {}).get("status") == "True"), None)


def ended(found: Object, phase: Phase, restarts: int = 0) -> State:
    """Return the state of a job that a condition says has ended."""
    words = ": ".join(filter(None, (found.get("reason"), found.get("message"))))
    return State(phase, words, restarts, found.get("lastTransitionTime"))


@dataclass(frozen=True)
class Pod:
    """A node's pod. `codes` are the exit codes its containers ended with, newest last."""

    name: str
    node: int | None
    host: str
    phase: str
    reason: str
    restarts: int
    codes: tuple[int, ...]


def pod(found: Object, kind: Kind) -> Pod:
    """Return what a pod says of itself."""
    status = found.get("status", {})
    containers = status.get("containerStatuses") or []
    ends = [
        end
        for container in containers
        for name in ("lastState", "state")
        if (end := container.get(name, {}).get("terminated"))
    ]
    waits = [w for c in containers if (w := c.get("state", {}).get("waiting"))]
    unscheduled = next(
        (
            c.get("message", "")
            for c in status.get("conditions") or []
            if c["type"] == "PodScheduled" and c["status"] == "False"
        ),
        "",
    )
    reasons = [
        status.get("reason", ""),
        *(w.get("reason", "") for w in waits),
        *(f"exit {e['exitCode']} ({e.get('reason', '')})" for e in ends[-1:]),
        unscheduled,
    ]
    return Pod(
        name=found["metadata"]["name"],
        node=kind.node(found),
        host=found.get("spec", {}).get("nodeName", ""),
        phase="Terminating"
        if "deletionTimestamp" in found["metadata"]
        else status.get("phase", ""),
        reason=next(filter(None, reasons), ""),
        restarts=sum(c.get("restartCount", 0) for c in containers),
        codes=tuple(e["exitCode"] for e in ends),
    )


def label_number(name: str) -> Callable[[Object], int | None]:
    """Return what reads a pod's node number from its label `name`."""

    def read(found: Object) -> int | None:
        text = found["metadata"].get("labels", {}).get(name, "")
        return int(text) if text.isdecimal() else None

    return read


def exit_code(state: State, pods: Iterable[Pod]) -> Exit:
    """Return the code that speaks for a job that has ended: the pods' own, where they left one."""
    if state.phase is Phase.SUCCEEDED:
        return Exit.DONE
    verdict = combine(_unshifted(pod.codes[-1]) for pod in pods if pod.codes)
    return Exit.CODE if verdict is Exit.DONE else verdict


def _unshifted(code: int) -> int:
    """Return what a code was before MUSTER_RETRY_EXIT_OFFSET moved it, see trainer/launch.py."""
    return code - 128 if code - 128 in MEANINGS and code != Exit.STOPPED else code


def find_kind(manifests: Iterable[Mapping[str, Any]]) -> tuple[Kind, Mapping[str, Any]]:
    """Return the one job among `manifests`. Raises Fault(64) when there is none, or more."""
    known = {(kind.api_version, kind.kind): kind for kind in kinds()}
    jobs = [m for m in manifests if (m.get("apiVersion"), m.get("kind")) in known]
    if len(jobs) != 1:
        wanted = ", ".join(kind for _, kind in known)
        raise Fault(Exit.CONFIG, f"{len(jobs)} jobs among the manifests; one of {wanted} is wanted")
    job = jobs[0]
    return known[job["apiVersion"], job["kind"]], job
