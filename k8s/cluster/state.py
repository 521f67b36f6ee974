"""The state of a job and of its pods, whatever its launcher. Pure.

Each launcher's folder has a `status.py` that knows its controller: which object it is, how to read it,
and which pod is which node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from k8s import launchers
from k8s.plan.status import Kind, Object, Phase, State, words
from trainer.config.exits import MEANINGS, Exit, Fault, combine

CANCELLED = "muster/cancelled"  # the annotation that says when a job was cancelled
QUEUE = "kueue.x-k8s.io/queue-name"  # the label of a job that Kueue admits


def read(kind: Kind, job: Object) -> State:
    """Return how a job is: what its controller says, and who holds it or has cancelled it."""
    return marked(kind.read(job), job)


def marked(state: State, held: Object) -> State:
    """Return a job's state with what is noted on `held`, the object by which it is held."""
    queue = (held["metadata"].get("labels") or {}).get(QUEUE)
    if state.phase is Phase.SUSPENDED and queue:
        state = replace(state, reason=f"held by queue {queue} of Kueue")
    at = (held["metadata"].get("annotations") or {}).get(CANCELLED)
    if at is None or state.phase.ended:
        return state
    return State(Phase.CANCELLED, f"at {at}; `resume` would let it go on", state.restarts, at)


def kinds() -> list[Kind]:
    """Return every launcher's kind of job, in the launchers' order."""
    found = (launchers.find(name).status for name in launchers.known())
    return [kind for kind in found if kind is not None]


@dataclass(frozen=True)
class Pod:
    """A node's pod. `codes` are the exit codes its containers ended with, newest last.

    `container` is the one that trains, with `procs` ranks.
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

    @property
    def ranks(self) -> range:
        """The ranks it runs; none where its node or their number is not known."""
        if self.node is None or self.procs is None:
            return range(0)
        return range(self.node * self.procs, (self.node + 1) * self.procs)


# A container that waits for these says nothing yet: another of its pod does, or none.
_BEFORE = ("PodInitializing", "ContainerCreating")


def pod(found: Object, kind: Kind) -> Pod:
    """Return what a pod says of itself."""
    status = found.get("status", {})
    first, then = (status.get(f"{part}Statuses") or [] for part in ("initContainer", "container"))
    ends = [
        end
        for container in [*first, *then]
        for name in ("lastState", "state")
        if (end := container.get(name, {}).get("terminated"))
        and (container in then or end["exitCode"])  # an init container that is done is no end
    ]
    container, procs = _trainer(found)
    return Pod(
        name=found["metadata"]["name"],
        node=kind.node(found),
        host=found.get("spec", {}).get("nodeName", ""),
        phase="Terminating"
        if "deletionTimestamp" in found["metadata"]
        else status.get("phase", ""),
        reason=_why(status, [*first, *then], ends),
        restarts=sum(c.get("restartCount", 0) for c in [*first, *then]),
        codes=tuple(e["exitCode"] for e in ends),
        procs=procs,
        uid=found["metadata"].get("uid", found["metadata"]["name"]),
        container=container,
    )


def _why(status: Object, containers: list[Object], ends: list[Object]) -> str:
    """Return what keeps a pod, or what ended it: the first that is told."""
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    disrupted, scheduled = (conditions.get(t, {}) for t in ("DisruptionTarget", "PodScheduled"))
    waits = [_waits(container) for container in containers]
    reasons = [
        words(status),
        *(words for words in waits if words not in _BEFORE),
        words(disrupted) if disrupted.get("status") == "True" else "",
        *(_end(end) for end in ends[-1:]),
        *waits,
        scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    ]
    return next(filter(None, reasons), "")


def _waits(container: Object) -> str:
    words: str = container.get("state", {}).get("waiting", {}).get("reason", "")
    before = container.get("lastState", {}).get("terminated")
    return f"{words} after {_end(before)}" if words and before else words


def _end(end: Object) -> str:
    return f"exit {end['exitCode']} ({end.get('reason', '')})"


def _trainer(found: Object) -> tuple[str, int | None]:
    """Return the container that trains, and how many ranks it runs by its environment."""
    containers = found.get("spec", {}).get("containers") or [{}]
    for container in containers:
        for variable in container.get("env", []):
            text = str(variable.get("value", ""))
            if variable["name"] == "PET_NPROC_PER_NODE" and text.isdecimal():
                return container["name"], int(text)
    return containers[0].get("name", ""), None


def exit_code(state: State, pods: Iterable[Pod]) -> Exit:
    """Return the code that speaks for a job that has ended: the pods' own, where they left one."""
    if state.phase is Phase.SUCCEEDED:
        return Exit.DONE
    if state.phase is Phase.CANCELLED:
        return Exit.STOPPED
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
