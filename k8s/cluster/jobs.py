"""What is done with a job: submit, look, wait, suspend, cancel, delete. Used by `python -m k8s`."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from k8s.cluster import api, logs, state
from k8s.cluster.api import Cluster, Object
from k8s.cluster.state import Kind, Pod, State
from trainer.exits import Exit, Fault

_OURS = {"app.kubernetes.io/managed-by": "muster"}
_PAUSE = 2.0  # seconds between two looks at a job that is waited for
_OURS_KINDS = (  # what a render makes beside the job
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
)


@dataclass(frozen=True)
class Job:
    """A job of the cluster: its object, the launcher's kind, and how it is."""

    kind: Kind
    found: Object
    state: State

    @property
    def name(self) -> str:
        name: str = self.found["metadata"]["name"]
        return name


@dataclass(frozen=True)
class Progress:
    """What the main rank last said of itself; `seconds_left` is an estimate."""

    step: int
    steps: int
    loss: float
    samples_per_s: float
    seconds_left: float


def submit(cluster: Cluster, manifests: list[Object], *, force: bool) -> str:
    """Apply the manifests, all or, when the server refuses one of them, none; return the job's name."""
    _, job = state.find_kind(manifests)
    for manifest in manifests:
        api.resource(cluster, manifest["apiVersion"], manifest["kind"])
        own = manifest["metadata"].get("namespace", cluster.namespace)
        if own != cluster.namespace:
            raise Fault(
                Exit.CONFIG,
                f"{manifest['kind']} {manifest['metadata']['name']} is for namespace {own}, not "
                f"{cluster.namespace}; say --namespace {own}",
            )
    for manifest in manifests:
        api.apply(cluster, manifest, dry_run=True, force=force)
    for manifest in manifests:
        api.apply(cluster, manifest, force=force)
    name: str = job["metadata"]["name"]
    return name


def served(cluster: Cluster) -> Iterator[Kind]:
    """Yield the kinds of job that the cluster serves."""
    for kind in state.kinds():
        try:
            api.resource(cluster, kind.api_version, kind.kind)
        except Fault as fault:
            if fault.code != Exit.CONFIG:
                raise
        else:
            yield kind


def look(cluster: Cluster, name: str) -> Job:
    """Return the job `name`, of whatever launcher. Raises Fault(64) when there is none."""
    for kind in served(cluster):
        found = api.get(cluster, kind.api_version, kind.kind, name)
        # a JobSet's or a TrainJob's own Jobs have other names, but a stranger's may have this one
        if found is not None and _is_ours(found):
            return Job(kind, found, kind.read(found))
    raise Fault(Exit.CONFIG, f"{cluster.where}: no job {name!r} of muster's here; see `list`")


def _is_ours(found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in _OURS.items())


def all_of(cluster: Cluster) -> list[Job]:
    """Return muster's jobs in the namespace, by name."""
    jobs = [
        Job(kind, found, kind.read(found))
        for kind in served(cluster)
        for found in api.find(cluster, kind.api_version, kind.kind, _OURS)
        # what another object of the list made is not listed beside it
        if not found["metadata"].get("ownerReferences")
    ]
    return sorted(jobs, key=lambda job: job.name)


def pods(cluster: Cluster, job: Job) -> list[Pod]:
    """Return the job's pods, by node."""
    labels = {"app.kubernetes.io/instance": job.name, "app.kubernetes.io/component": "trainer"}
    found = [state.pod(item, job.kind) for item in api.find(cluster, "v1", "Pod", labels)]
    return sorted(found, key=lambda pod: (pod.node is None, pod.node, pod.name))


def events(cluster: Cluster, job: Job, of: list[Pod]) -> list[str]:
    """Return the warnings of the job and its pods, newest last, a line each."""
    names = {job.name, *(pod.name for pod in of)}
    path = api.path_of(cluster, "v1", "Event")
    items = api.call(cluster, "GET", path, query={"fieldSelector": "type=Warning"})["items"]
    mine = [e for e in items if e["involvedObject"].get("name") in names]
    mine.sort(key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")
    return [f"{e['involvedObject']['name']}: {e['reason']}: {e['message']}" for e in mine]


def progress(cluster: Cluster, of: list[Pod]) -> Progress | None:
    """Return what the first node's newest step event says, None when there is none yet."""
    first = next((pod for pod in of if pod.node == 0 and pod.phase == "Running"), None)
    if first is None:
        return None
    return newest_step(logs.tail(cluster, first.name, lines=200))


def newest_step(lines: list[str]) -> Progress | None:
    """Return the newest step event among a log's lines."""
    for line in reversed(lines):
        event = _event(line)
        if event.get("event") == "step":
            left = event["steps"] - event["step"]
            seconds = event["samples"] / event["step"] * left / event["samples_per_s"]
            return Progress(
                event["step"], event["steps"], event["loss"], event["samples_per_s"], seconds
            )
    return None


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def wait(
    cluster: Cluster, name: str, *, timeout: float | None, told: Callable[[State], None]
) -> Exit:
    """Wait until a job has ended and return the code that speaks for it.

    `told` hears every change of state. Raises Fault(69) after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    before = None
    while True:
        job = look(cluster, name)
        if job.state != before:
            told(job.state)
            before = job.state
        if job.state.phase.ended:
            return state.exit_code(job.state, pods(cluster, job))
        if time.monotonic() + _PAUSE > deadline:
            raise Fault(Exit.PEER, f"job {name} is {job.state.phase} after {timeout:g} s")
        time.sleep(_PAUSE)


def suspend(cluster: Cluster, job: Job, *, on: bool) -> None:
    """Suspend a job, or let it go on; its pods end with a checkpoint, and come back to it.

    Raises Fault(64) for a job that has ended, or whose controller suspends by other means.
    """
    if job.state.phase.ended:
        raise Fault(Exit.CONFIG, f"job {job.name} has {job.state.phase}: too late")
    if not job.kind.suspend:
        verb = "suspend" if on else "resume"
        raise Fault(
            Exit.CONFIG, f"{job.kind.kind} of {job.kind.api_version}: use `vcctl job {verb}`"
        )
    change: Any = on
    for part in reversed(job.kind.suspend):
        change = {part: change}
    api.patch(cluster, job.found, change)


def delete(cluster: Cluster, job: Job) -> list[str]:
    """Delete a job and what was rendered with it; return what went, in words."""
    labels = _OURS | {"app.kubernetes.io/instance": job.name}
    api.delete(cluster, job.found)
    gone = [f"{job.kind.kind}/{job.name}"]
    for api_version, kind in _OURS_KINDS:
        try:
            beside = api.find(cluster, api_version, kind, labels)
        except Fault as fault:
            if fault.code != Exit.CONFIG:
                raise
            continue  # not served, or not ours to see: then there is none of ours
        for found in beside:
            api.delete(cluster, {"apiVersion": api_version, "kind": kind} | found)
            gone.append(f"{kind}/{found['metadata']['name']}")
    return gone


def finished_before(jobs: list[Job], moment: datetime) -> list[Job]:
    """Return the jobs that ended before `moment`."""
    return [
        job
        for job in jobs
        if job.state.phase.ended
        and job.state.ended_at is not None
        and datetime.fromisoformat(job.state.ended_at).astimezone(UTC) < moment
    ]
