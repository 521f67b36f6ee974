"""The jobs of a cluster, of whatever launcher: found, looked at, waited for, deleted.

job = look(cluster, "digits")
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from k8s.cluster import state, wrapped
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.client.objects import NotServed
from k8s.cluster.client.watch import changes
from k8s.cluster.state import Pod
from k8s.plan.status import Kind, State
from trainer.config.exits import Exit, Fault

OURS = {"app.kubernetes.io/managed-by": "muster"}
BESIDE = {  # what a render makes beside the job, and of which launchers alone
    ("v1", "Service"): None,
    ("v1", "ConfigMap"): None,
    ("apps/v1", "Deployment"): None,
    ("networking.k8s.io/v1", "NetworkPolicy"): None,
    ("policy/v1", "PodDisruptionBudget"): None,
    ("monitoring.coreos.com/v1", "PodMonitor"): None,
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): ("job", "jobset"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): ("trainjob",),
}


def beside(launcher: str) -> list[tuple[str, str]]:
    """Return the kinds of object that may stand beside a launcher's job, and are deleted with it."""
    return [kind for kind, only in BESIDE.items() if only is None or launcher in only]


@dataclass(frozen=True)
class Job:
    """A job of the cluster: its object, the launcher's kind, and how it is.

    `found` is what it will be while its AppWrapper, `wrapper`, holds it back.
    """

    kind: Kind
    found: Object
    state: State
    wrapper: Object | None = None

    @property
    def name(self) -> str:
        name: str = self.found["metadata"]["name"]
        return name

    @property
    def held(self) -> Object:
        """The object by which the job is suspended, marked and deleted."""
        return self.found if self.wrapper is None else self.wrapper


def served(cluster: Cluster) -> Iterator[Kind]:
    """Yield the kinds of job that the cluster serves."""
    for kind in state.kinds():
        try:
            objects.resource(cluster, kind.api_version, kind.kind)
        except NotServed:
            continue
        yield kind


def look(cluster: Cluster, name: str) -> Job:
    """Return the job `name`, of whatever launcher. Raises Fault(64) when there is none."""
    hidden: Fault | None = None
    for kind in served(cluster):
        try:
            job = of_kind(cluster, kind, name)
        except Forbidden as refusal:  # whoever may use one launcher need not see the others
            hidden = refusal
            continue
        if job is not None:
            return job
    with contextlib.suppress(NotServed, Forbidden):  # a job that is held back is not there yet
        found = objects.get(cluster, *wrapped.WRAPPER, name)
        if found is not None and _is_ours(found):
            return of(cluster, found)
    seen = f" among what may be seen ({hidden})" if hidden else ""
    raise Fault(Exit.CONFIG, f"{cluster.where}: no job {name!r} of muster's here{seen}; see `list`")


def of_kind(cluster: Cluster, kind: Kind, name: str) -> Job | None:
    """Return the job `name` of a launcher, or None when muster has made none."""
    found = objects.get(cluster, kind.api_version, kind.kind, name)
    # a JobSet's or a TrainJob's own Jobs have other names, but a stranger's may have this one
    if found is None or not _is_ours(found):
        return None
    around = wrapped.owner(found)
    wrapper = objects.get(cluster, *wrapped.WRAPPER, around) if around else None
    return of(cluster, wrapper or found)


def of(cluster: Cluster, held: Object) -> Job:
    """Return the job that an object of the cluster is, or holds. Raises Fault(64) if it is none."""
    kind, job = state.find_kind(wrapped.contents(held))
    if not wrapped.is_wrapper(held):
        return Job(kind, held, state.read(kind, held))
    made = objects.get(cluster, kind.api_version, kind.kind, job["metadata"]["name"])
    found = made if made is not None and wrapped.owner(made) else dict(job)
    return Job(kind, found, state.marked(wrapped.fold(held, kind.read(found)), held), held)


def again(cluster: Cluster, job: Job) -> Job:
    """Return a job as it is now. Raises Fault(64) when it is there no longer."""
    held = job.held
    found = objects.get(cluster, held["apiVersion"], held["kind"], held["metadata"]["name"])
    return _as(cluster, job, found)


def _as(cluster: Cluster, job: Job, found: Object | None) -> Job:
    if found is None:
        raise Fault(Exit.CONFIG, f"{cluster.where}: job {job.name!r} was deleted meanwhile")
    return of(cluster, found)


def _is_ours(found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in OURS.items())


def all_of(cluster: Cluster) -> list[Job]:
    """Return muster's jobs in the namespace, by name; those of kinds that may be seen.

    Raises Forbidden when none may be, which is not the same as that there are no jobs.
    """
    jobs: list[Job] = []
    hidden: Fault | None = None
    seen = False
    for api_version, kind in [*((k.api_version, k.kind) for k in state.kinds()), wrapped.WRAPPER]:
        try:
            items = objects.find(cluster, api_version, kind, OURS)
        except NotServed:
            continue
        except Forbidden as refusal:
            hidden = refusal
            continue
        seen = True
        # what another object of the list made is not listed beside it
        own = (item for item in items if not item["metadata"].get("ownerReferences"))
        # a list's items do not say what they are
        jobs += [of(cluster, {"apiVersion": api_version, "kind": kind, **item}) for item in own]
    if hidden and not seen:
        raise hidden
    return sorted(jobs, key=lambda job: job.name)


def _since(job: Job) -> str:
    """Return when the job was made, to the second. What is older is of a former one of its name."""
    return _second(job.held["metadata"].get("creationTimestamp"))


def _second(moment: str | None) -> str:
    return (moment or "")[: len("2026-01-01T00:00:00")]


def pods_of(cluster: Cluster, job: Job) -> list[Object]:
    """Return the objects of the job's pods, without a former job's, which take a while to end."""
    labels = {"app.kubernetes.io/instance": job.name, "app.kubernetes.io/component": "trainer"}
    found, since = objects.find(cluster, "v1", "Pod", labels), _since(job)
    return [pod for pod in found if _second(pod["metadata"].get("creationTimestamp")) >= since]


def pods(cluster: Cluster, job: Job) -> list[Pod]:
    """Return the job's pods, by node."""
    found = [state.pod(item, job.kind) for item in pods_of(cluster, job)]
    return sorted(found, key=lambda pod: (pod.node is None, pod.node, pod.name))


def events_of(cluster: Cluster, job: Job, names: set[str], *, fields: str = "") -> list[Object]:
    """Return the events of the job and of what is called `names`, oldest first."""
    items = objects.find(cluster, "v1", "Event", fields=fields)
    wanted, since = {job.name, *names}, _since(job)
    mine = [e for e in items if e.get("involvedObject", {}).get("name") in wanted]
    return sorted((e for e in mine if _second(_moment(e)) >= since), key=_moment)


def _moment(event: Object) -> str:
    made = event["metadata"].get("creationTimestamp")
    return event.get("lastTimestamp") or event.get("eventTime") or made or ""


def events(cluster: Cluster, job: Job, of: list[Pod]) -> list[str]:
    """Return the warnings of the job and its pods, newest last, a line each."""
    found = events_of(cluster, job, {pod.name for pod in of}, fields="type=Warning")
    return [f"{e['involvedObject']['name']}: {e.get('reason')}: {e.get('message')}" for e in found]


def wait(
    cluster: Cluster, name: str, *, timeout: float | None, told: Callable[[State], None]
) -> Exit:
    """Wait until a job has ended and return the code that speaks for it.

    `told` hears every change of state. Raises Fault(69) after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    job = look(cluster, name)
    held = job.held
    before = None
    for found in changes(
        cluster, held["apiVersion"], held["kind"], held["metadata"]["name"], deadline=deadline
    ):
        job = _as(cluster, job, found)
        if job.state != before:
            told(job.state)
            before = job.state
        if job.state.phase.ended:
            return state.exit_code(job.state, pods(cluster, job))
    raise Fault(Exit.PEER, f"job {name} is {job.state.phase} after {timeout:g} s")


def delete(cluster: Cluster, job: Job) -> list[str]:
    """Delete a job and what was rendered with it; return what went, in words."""
    labels = OURS | {"app.kubernetes.io/instance": job.name}
    objects.delete(cluster, job.held)
    gone = [f"{job.held['kind']}/{job.name}"]
    for api_version, kind in beside(job.kind.launcher):
        try:
            others = objects.find(cluster, api_version, kind, labels)
        except (NotServed, Forbidden):
            continue  # not there, or not ours to see: then there is none of ours
        for found in others:
            objects.delete(cluster, {"apiVersion": api_version, "kind": kind} | found)
            gone.append(f"{kind}/{found['metadata']['name']}")
    return gone


def finished_before(jobs: list[Job], moment: datetime) -> list[Job]:
    """Return the jobs that ended before `moment`; not those whose end is no time, as people write it."""

    def ended(job: Job) -> datetime:
        try:
            return datetime.fromisoformat(job.state.ended_at or "").astimezone(UTC)
        except ValueError:
            return moment

    return [job for job in jobs if job.state.phase.ended and ended(job) < moment]
