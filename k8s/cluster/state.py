"""The state of a job and of its pods, of any launcher. Pure.

A launcher's own rules for this are in its folder's `job_kind.py`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from k8s import launchers
from k8s.base.errors import config_error
from k8s.cluster import wrapped_job
from k8s.plan.job_kind import JobKind, Object, Phase, State, reason_and_message
from k8s.plan.model import LAUNCHER
from trainer.config.exits import MEANINGS, Exit, combine

CANCELLED = "muster/cancelled"  # annotation: the time at which a job was cancelled
QUEUE = "kueue.x-k8s.io/queue-name"  # label of a job in a queue of Kueue


def with_notes(state: State, root: Object) -> State:
    """Return a job's state, with what the labels and annotations of its root object add."""
    queue = (root["metadata"].get("labels") or {}).get(QUEUE)
    if state.phase is Phase.SUSPENDED and queue:
        state = replace(state, reason=f"waits in queue {queue} of Kueue")
    if is_being_deleted(root) and not state.phase.ended:
        return replace(state, reason="being deleted")
    at = (root["metadata"].get("annotations") or {}).get(CANCELLED)
    if at is None or state.phase.ended:
        return state
    return State(Phase.CANCELLED, f"at {at}; `resume` would let it go on", state.restarts, at)


def is_being_deleted(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]


@dataclass(frozen=True)
class Pod:
    """A pod, which is a node of the job. `codes` are the exit codes that count, the trainer's last.

    `container` is the name of the trainer's container, which runs `procs` ranks, or of the init
    container that runs or has failed before it. `has_log`: whether that has started.
    """

    name: str
    node: int | None
    host: str
    phase: str
    reason: str
    restarts: int
    codes: tuple[int, ...]
    procs: int | None
    uid: str
    container: str
    has_log: bool

    @property
    def ranks(self) -> range:
        """The pod's ranks; empty if its node or the number of its ranks is not known."""
        if self.node is None or self.procs is None:
            return range(0)
        return range(self.node * self.procs, (self.node + 1) * self.procs)


# Reasons of a container that waits for another container of its pod: that one has the actual reason.
_WAITS_FOR_OTHERS = ("PodInitializing", "ContainerCreating")


def pod(found: Object, kind: JobKind) -> Pod:
    """Return the state of a pod from its object."""
    status = found.get("status", {})
    container = trainer_container(found)
    # A sidecar is an init container, too, and may end with any code after the trainer.
    has_run = any(
        one.get("state", {}).keys() & {"running", "terminated"} or one.get("lastState")
        for one in status.get("containerStatuses") or []
    )
    init_containers = found.get("spec", {}).get("initContainers") or []
    sidecars = [one["name"] for one in init_containers if one.get("restartPolicy") == "Always"]
    before = [
        one.get("name", "")
        for one in status.get("initContainerStatuses") or []
        if not has_run
        and (
            one.get("state", {}).get("terminated", {}).get("exitCode")
            or ("running" in one.get("state", {}) and one.get("name") not in sidecars)
        )
    ]
    return Pod(
        name=found["metadata"]["name"],
        node=kind.node(found),
        host=found.get("spec", {}).get("nodeName", ""),
        phase="Terminating" if is_being_deleted(found) else status.get("phase", ""),
        reason=reason(found),
        restarts=sum(c.get("restartCount", 0) for c in container_statuses(found)),
        codes=tuple(e["exitCode"] for e in _ends(found)),
        procs=_procs(container),
        uid=found["metadata"].get("uid", found["metadata"]["name"]),
        container=next(iter(before), container.get("name", "")),
        has_log=bool(before) or status.get("phase", "") != "Pending",
    )


def trainer_container(found: Object) -> Object:
    """Return the trainer's container of a pod: the one with a number of ranks, else the first."""
    containers: list[Object] = found.get("spec", {}).get("containers") or [{}]
    return next((one for one in containers if _procs(one) is not None), containers[0])


def _procs(container: Object) -> int | None:
    text = variables(container).get("PET_NPROC_PER_NODE", "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def variables(container: Object) -> dict[str, str]:
    """Return the environment variables whose values are in the container's manifest."""
    return {one["name"]: str(one.get("value", "")) for one in container.get("env", [])}


def runs_own_program(container: Object) -> bool:
    """Return whether a trainer's container runs the user's own program (`run` in the job file)."""
    return LAUNCHER in container.get("command", [])


def mappings(found: Any) -> Iterator[Object]:
    """Yield each mapping in manifests, outer ones first: each kind has its pod template elsewhere."""
    if isinstance(found, list):
        for one in found:
            yield from mappings(one)
    elif isinstance(found, dict):
        yield found
        for one in found.values():
            yield from mappings(one)


def container_statuses(found: Object) -> list[Object]:
    """Return the status of each container of a pod: init containers first, the trainer's last."""
    status = found.get("status", {})
    regular = status.get("containerStatuses") or []
    # Kubernetes sorts them by name.
    regular = sorted(regular, key=lambda one: _is_trainers(one, found))
    return [*(status.get("initContainerStatuses") or []), *regular]


def _is_trainers(status: Object, found: Object) -> bool:
    name = trainer_container(found).get("name", "")
    return bool(status.get("name", name) == name)


def _ends(found: Object) -> list[Object]:
    """Return the terminations that count: of another container than the trainer's, only a failure."""
    return [
        end
        for container in container_statuses(found)
        for name in ("lastState", "state")
        if (end := container.get(name, {}).get("terminated"))
        and (end["exitCode"] or _is_trainers(container, found))
    ]


def reason(found: Object) -> str:
    """Return why a pod does not run, or why it ended: the first reason that is given."""
    status = found.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    disrupted, scheduled = (conditions.get(t, {}) for t in ("DisruptionTarget", "PodScheduled"))
    waits = [_waiting(container) for container in container_statuses(found)]
    reasons = [
        reason_and_message(status),
        *(one for one in waits if one not in _WAITS_FOR_OTHERS),
        reason_and_message(disrupted) if disrupted.get("status") == "True" else "",
        *(_end(end) for end in _ends(found)[-1:]),
        *waits,
        scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    ]
    return next(filter(None, reasons), "")


def _waiting(container: Object) -> str:
    reason: str = container.get("state", {}).get("waiting", {}).get("reason", "")
    before = container.get("lastState", {}).get("terminated")
    return f"{reason} after {_end(before)}" if reason and before else reason


def _end(end: Object) -> str:
    return f"exit {end['exitCode']} ({end.get('reason', '')})"


def exit_code(state: State, pods: Iterable[Pod]) -> Exit:
    """Return the exit code of a job that has ended: its pods' codes combined, if there are any."""
    if state.phase is Phase.SUCCEEDED:
        return Exit.DONE
    if state.phase is Phase.CANCELLED:
        return Exit.STOPPED
    combined = combine(unshifted(pod.codes[-1]) for pod in pods if pod.codes)
    return Exit.CODE if combined is Exit.DONE else combined


def unshifted(code: int) -> int:
    """Undo MUSTER_RETRY_EXIT_OFFSET, which trainer.launch adds to an exit code."""
    return code - 128 if code - 128 in MEANINGS and code != Exit.STOPPED else code


def is_part(found: Object) -> bool:
    """Return whether an object is part of a job. An object of another tool may own a job itself."""
    kinds = {*(kind.kind for kind in launchers.job_kinds()), wrapped_job.WRAPPER[1]}
    owners = found["metadata"].get("ownerReferences") or []
    return any(one["kind"] in kinds for one in owners)


def find_job_manifest(manifests: Iterable[Object]) -> tuple[JobKind, Object]:
    """Return the one job among `manifests`. Raises Fault(64) if there is none or more than one."""
    known = {(kind.api_version, kind.kind): kind for kind in launchers.job_kinds()}
    jobs = [m for m in manifests if (m.get("apiVersion"), m.get("kind")) in known]
    if len(jobs) != 1:
        wanted = " or ".join(kind for _, kind in known)
        raise config_error(
            f"{len(jobs)} jobs among the manifests; there must be one, of kind {wanted}"
        )
    job = jobs[0]
    return known[job["apiVersion"], job["kind"]], job
