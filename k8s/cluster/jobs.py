"""The jobs in a namespace, of any launcher: get, list, wait for and delete them.

job = get_job(cluster, "digits")
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from k8s import launchers
from k8s.base.errors import config_error
from k8s.cluster import state, wrapped_job
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Missing, Object
from k8s.cluster.client.objects import NotServed
from k8s.cluster.client.watch import changes
from k8s.cluster.state import Pod
from k8s.plan.job_kind import Api, JobKind, Phase, State
from trainer.config.exits import Exit, Fault

MANAGED = {"app.kubernetes.io/managed-by": "muster"}  # the label of every object that muster makes
_COMPANION_KINDS: list[Api] = [  # what any launcher may render with the job
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
]
_TO_SECOND = len("2026-01-01T00:00:00")  # of a timestamp: some have fractions, some do not


@dataclass(frozen=True)
class Job:
    """A job in the cluster: its launcher's kind, its object, its state.

    `wrapper` is its AppWrapper, if it has one. Until that has made the job, `manifest` is its template.
    """

    kind: JobKind
    manifest: Object
    state: State
    wrapper: Object | None = None

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name

    @property
    def code(self) -> dict[str, str]:
        """The hash of the code that the job carries, and its git commit, as far as they are known."""
        found = self.root_object["metadata"].get("annotations") or {}
        names = {"sha256": "muster/code-sha256", "commit": "muster/code-commit"}
        return {key: str(found[name]) for key, name in names.items() if name in found}

    @property
    def root_object(self) -> Object:
        """The object that is suspended, annotated and deleted: the AppWrapper, or the job itself."""
        return self.manifest if self.wrapper is None else self.wrapper


def get_job(cluster: Cluster, name: str) -> Job:
    """Return the job `name`, of any launcher. Raises Missing (64) when there is none."""
    hidden: Fault | None = None
    for kind in served_kinds(cluster):
        try:
            job = find_job(cluster, kind, name)
        except Forbidden as refusal:  # a user of one launcher need not have rights on the others
            hidden = refusal
            continue
        if job is not None:
            return job
    with contextlib.suppress(NotServed, Forbidden):
        # a suspended AppWrapper may not have made its job yet
        wrapper = objects.get(cluster, *wrapped_job.WRAPPER, name)
        if wrapper is not None and is_managed(wrapper):
            return job_from(cluster, wrapper)
    seen = f" among the kinds that you may read ({hidden})" if hidden else ""
    raise Missing(Exit.CONFIG, f"{cluster.where}: no muster job {name!r} here{seen}; see `list`")


def served_kinds(cluster: Cluster) -> Iterator[JobKind]:
    """Yield the job kinds that the cluster serves."""
    for kind in launchers.job_kinds():
        try:
            objects.resource(cluster, kind.api_version, kind.kind)
        except NotServed:
            continue
        yield kind


def find_job(cluster: Cluster, kind: JobKind, name: str) -> Job | None:
    """Return the job `name` of one kind, or None if muster has made none."""
    found = objects.get(cluster, kind.api_version, kind.kind, name)
    # The Jobs of a JobSet or a TrainJob have other names, but a Job of another tool may have this name.
    if found is None or not is_managed(found):
        return None
    owner = wrapped_job.owner(found)
    wrapper = objects.get(cluster, *wrapped_job.WRAPPER, owner) if owner else None
    return job_from(cluster, wrapper or found)


def job_from(cluster: Cluster, root: Object) -> Job:
    """Return the job of a job object or an AppWrapper. Raises Fault(64) if it is neither."""
    kind, manifest = state.find_job_manifest(wrapped_job.with_contents([root]))
    if not wrapped_job.is_wrapper(root):
        return Job(kind, root, state.with_notes(kind.read(root), root))
    made = objects.get(cluster, kind.api_version, kind.kind, manifest["metadata"]["name"])
    found = made if made is not None and wrapped_job.owner(made) else manifest
    return Job(kind, found, state.with_notes(wrapped_job.state(root, kind.read(found)), root), root)


def refresh(cluster: Cluster, job: Job) -> Job:
    """Return a job as it is now. Raises Fault(64) when it was deleted."""
    root = job.root_object
    found = objects.get(cluster, root["apiVersion"], root["kind"], root["metadata"]["name"])
    return _not_deleted(cluster, job, found)


def _not_deleted(cluster: Cluster, job: Job, root: Object | None) -> Job:
    if root is None:
        raise config_error(f"{cluster.where}: job {job.name!r} was deleted in the meantime")
    return job_from(cluster, root)


def is_managed(found: Object) -> bool:
    return MANAGED.items() <= (found["metadata"].get("labels") or {}).items()


def list_jobs(cluster: Cluster) -> list[Job]:
    """Return muster's jobs in the namespace, sorted by name, of the kinds that the user may list.

    Raises Forbidden when the user may list none of them, since an empty list would mean "no jobs".
    """
    jobs: list[Job] = []
    hidden: Fault | None = None
    seen = False
    kinds = [(kind.api_version, kind.kind) for kind in launchers.job_kinds()]
    for api_version, kind in [*kinds, wrapped_job.WRAPPER]:
        try:
            items = objects.find(cluster, api_version, kind, MANAGED)
        except NotServed:
            continue
        except Forbidden as refusal:
            hidden = refusal
            continue
        seen = True
        roots = (item for item in items if not state.is_part(item))
        jobs += [job_from(cluster, root) for root in roots]
    if hidden and not seen:
        raise hidden
    return sorted(jobs, key=lambda job: job.name)


def pod_objects(cluster: Cluster, job: Job) -> list[Object]:
    """Return the job's pods as objects, without those of an earlier job of its name."""
    found, since = pods_of_name(cluster, job.name), _created(job.root_object)
    return [pod for pod in found if _created(pod) >= since]


def newest_pod_objects(cluster: Cluster, job: Job) -> list[Object]:
    """Return the newest pod of each node: the end of an earlier pod did not end the job."""
    newest: dict[object, Object] = {}
    created = pod_objects(cluster, job)
    for pod in sorted(created, key=lambda one: one["metadata"].get("creationTimestamp") or ""):
        node = job.kind.node(pod)
        newest[pod["metadata"]["name"] if node is None else node] = pod
    return list(newest.values())


def pods_of_name(cluster: Cluster, name: str) -> list[Object]:
    """Return the pods of every job of this name, also of one that was deleted."""
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "trainer"}
    return objects.find(cluster, "v1", "Pod", labels)


def running_pods(cluster: Cluster, name: str) -> list[Object]:
    """Return those of `pods_of_name` that have not ended."""
    ended = ("Succeeded", "Failed")
    found = pods_of_name(cluster, name)
    return [pod for pod in found if pod.get("status", {}).get("phase") not in ended]


def running_containers(cluster: Cluster, job: Job) -> dict[str, Object]:
    """Return the trainer's container of each running pod of the job, by the pod's name.

    Raises Fault(64) for a job that has ended, Fault(69) when none of its pods runs.
    """
    if job.state.phase.ended:
        raise config_error(
            f"{cluster.where}: job {job.name} has ended ({job.state.phase}): none of its pods runs"
        )
    found = [
        pod for pod in pod_objects(cluster, job) if state.pod(pod, job.kind).phase == "Running"
    ]
    if not found:
        raise Fault(
            Exit.PEER,
            f"{cluster.where}: job {job.name} is {job.state.phase}: none of its pods runs; see `status`",
        )
    found.sort(key=lambda pod: str(pod["metadata"]["name"]))
    return {pod["metadata"]["name"]: state.trainer_container(pod) for pod in found}


def _created(found: Object) -> str:
    """Return when an object was made. What is older than a job belongs to an earlier one of its name."""
    return (found["metadata"].get("creationTimestamp") or "")[:_TO_SECOND]


def pods(cluster: Cluster, job: Job, *, newest: bool = False) -> list[Pod]:
    """Return the job's pods, or only the newest of each node, sorted by node."""
    items = (newest_pod_objects if newest else pod_objects)(cluster, job)
    found = [state.pod(item, job.kind) for item in items]
    return sorted(found, key=lambda pod: (pod.node is None, pod.node, pod.name))


def events(cluster: Cluster, job: Job, pods: set[str], *, fields: str = "") -> list[Object]:
    """Return the events of the job and of the pods with the names `pods`, oldest first."""
    items = objects.find(cluster, "v1", "Event", fields=fields)
    names, since = {job.name, *pods}, _created(job.root_object)
    found = [e for e in items if e.get("involvedObject", {}).get("name") in names]
    return sorted((e for e in found if _time_of(e)[:_TO_SECOND] >= since), key=_time_of)


def _time_of(event: Object) -> str:
    created = event["metadata"].get("creationTimestamp")
    return event.get("lastTimestamp") or event.get("eventTime") or created or ""


def warnings(cluster: Cluster, job: Job, pods: list[Pod]) -> list[str]:
    """Return a line for each warning event, newest last, or one that says why they cannot be read."""
    try:
        found = events(cluster, job, {pod.name for pod in pods}, fields="type=Warning")
    except Forbidden as fault:
        return [str(fault)]
    return [f"{e['involvedObject']['name']}: {e.get('reason')}: {e.get('message')}" for e in found]


def wait(
    cluster: Cluster, name: str, *, timeout: float | None, on_change: Callable[[State], None]
) -> Exit:
    """Wait until a job has ended and return its exit code.

    Calls `on_change` with every new state. Raises Fault(69) after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    job = get_job(cluster, name)
    root = job.root_object
    before = None
    for found in changes(
        cluster, root["apiVersion"], root["kind"], root["metadata"]["name"], deadline=deadline
    ):
        job = _not_deleted(cluster, job, found)
        if job.state != before:
            on_change(job.state)
            before = job.state
        if job.state.phase.ended:
            failed = job.state.phase is Phase.FAILED  # else no right on pods is needed
            return state.exit_code(job.state, pods(cluster, job, newest=True) if failed else ())
    raise Fault(Exit.PEER, f"job {name} is {job.state.phase} after {timeout:g} s")


def delete(cluster: Cluster, job: Job) -> list[str]:
    """Delete a job and its companions; return what was deleted, each as KIND/NAME."""
    objects.delete(cluster, job.root_object)
    companions = _delete_companions(cluster, job.name, companion_kinds(job.kind))
    return [f"{job.root_object['kind']}/{job.name}", *companions]


def delete_by_name(cluster: Cluster, name: str) -> list[str]:
    """Delete the job `name`, or what one that is gone has left. Raises Missing (64) if there is neither.

    While pods run there may be a job that this user may not read.
    """
    try:
        job = get_job(cluster, name)
    except Missing:
        if running_pods(cluster, name):
            raise
        every = {one: None for kind in launchers.job_kinds() for one in companion_kinds(kind)}
        if not (left := _delete_companions(cluster, name, every)):
            raise
        return left
    return delete(cluster, job)


def _delete_companions(cluster: Cluster, name: str, kinds: Iterable[Api]) -> list[str]:
    labels = MANAGED | {"app.kubernetes.io/instance": name}
    deleted = []
    for api_version, kind in kinds:
        try:
            companions = objects.find(cluster, api_version, kind, labels)
        except (NotServed, Forbidden):
            continue  # then the job has no object of this kind
        for found in companions:
            objects.delete(cluster, found)
            deleted.append(f"{kind}/{found['metadata']['name']}")
    return deleted


def companion_kinds(kind: JobKind) -> list[Api]:
    """Return the kinds of object that may be rendered with a job, and are deleted with it."""
    return [*_COMPANION_KINDS, *kind.companion_kinds]


def ended_before(jobs: list[Job], moment: datetime) -> list[Job]:
    """Return the jobs that ended before `moment`; not those whose end is not a valid time."""

    def ended(job: Job) -> datetime:
        try:
            return datetime.fromisoformat(job.state.ended_at or "").astimezone(UTC)
        except ValueError:
            return moment

    return [job for job in jobs if job.state.phase.ended and ended(job) < moment]
