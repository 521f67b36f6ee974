"""Why a job failed or does not start, from its pods, events, conditions and logs.

for line in why(cluster, get_job(cluster, "digits")): print(line)
"""

from collections.abc import Iterable, Iterator

from k8s.cluster import jobs, state
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.client.objects import NotServed
from k8s.cluster.control import KUEUE_VERSIONS
from k8s.cluster.jobs import Job
from k8s.cluster.observe import logs
from k8s.plan.job_kind import Phase
from trainer.config.exits import Fault
from trainer.diagnosis.diagnose import diagnose, in_words
from trainer.diagnosis.signs import Sign, as_seconds, read_log

_MOST = 10  # lines
_MOST_LOGS = 64  # pods whose logs are read
_TAIL = 400  # lines of each log, from its end
# What a job's controller or queue makes for it, and writes conditions and events about.
CHILDREN = (
    ("batch/v1", "Job"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    *((version, "Workload") for version in KUEUE_VERSIONS),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
)


def why(cluster: Cluster, job: Job) -> list[str]:
    """Return at most ten lines: the job's state, what failed first, why, what to do, what followed.

    Events and logs that cannot be read are left out, and the last line says so. Raises what `api.call`
    raises.
    """
    unread: list[str] = []
    found = diagnose(_signs(cluster, job, unread))
    state = job.state
    restarts = f", {state.restarts} restarts" if state.restarts else ""
    lines = [f"{job.name} is {state.phase}{restarts}{': ' if state.reason else ''}{state.reason}"]
    if found is not None and state.phase is not Phase.SUCCEEDED:
        lines += in_words(found, job=job.name)
    elif state.phase is not Phase.SUCCEEDED:
        lines.append("cause     pods, events and logs show no failure")
    return [*lines[: _MOST - len(unread[:1])], *(f"unread    {text}" for text in unread[:1])]


def _signs(cluster: Cluster, job: Job, unread: list[str]) -> Iterator[Sign]:
    pods = jobs.newest_pod_objects(cluster, job)
    children = list(_children(cluster, job))
    names = {one["metadata"]["name"] for one in [*pods, *children]}
    started = {pod["metadata"]["name"]: _started(pod) for pod in pods}
    # What delayed the start no longer counts once the pods have their machines.
    newest = max(started.values(), default=0.0)
    warnings: dict[str, list[Sign]] = {}
    events: list[Object] = []
    try:
        events = jobs.events(cluster, job, names, fields="type=Warning")
    except Forbidden as fault:
        unread.append(str(fault))
    for event in events:
        about = event["involvedObject"]
        sign = Sign(
            f"{event.get('reason')}: {event.get('message')}",
            f"event of {about.get('kind', 'object')} {about['name']}",
            f"{about.get('kind', 'object')} {about['name']}",
            as_seconds(event.get("lastTimestamp") or event.get("eventTime")),
        )
        if _counts(sign, since=started.get(about["name"], newest)):
            warnings.setdefault(about["name"], []).append(sign)
    for child in [job.root_object, *children]:
        yield from warnings.get(child["metadata"]["name"], [])
        yield from (one for one in _conditions(child) if _counts(one, since=newest))
    if not pods and job.state.phase is Phase.FAILED:
        unread.append(
            "its logs: its pods are gone; ask its run folder: python -m trainer.why FOLDER"
        )
    suspended = "is suspended" if job.state.phase is Phase.SUSPENDED else ""
    if text := ": ".join(filter(None, (suspended, job.state.reason))):
        yield Sign(text, f"{job.root_object['kind']} {job.name}", f"job {job.name}")
    for number, pod in enumerate(pods):
        yield from _of_pod(
            cluster,
            job,
            pod,
            warnings=warnings.get(pod["metadata"]["name"], []),
            unread=unread,
            is_log_read=number < _MOST_LOGS,
        )


def _started(pod: Object) -> float:
    return as_seconds(pod.get("status", {}).get("startTime")) or 0.0


def _counts(sign: Sign, *, since: float) -> bool:
    return sign.time is None or sign.time >= since


def _children(cluster: Cluster, job: Job) -> Iterator[Object]:
    """Yield the objects that controllers have made for the job or its AppWrapper."""
    owners = {job.root_object["metadata"].get("uid"), job.manifest["metadata"].get("uid")} - {None}
    for api_version, kind in CHILDREN:
        try:
            found = objects.find(cluster, api_version, kind)
        except (NotServed, Forbidden):
            continue
        for one in found:
            made_by = {owner.get("uid") for owner in one["metadata"].get("ownerReferences") or []}
            if made_by & owners:
                yield one


def _conditions(found: Object) -> Iterator[Sign]:
    """Yield the conditions of a job, a Workload or a PodGroup that show a problem."""
    for condition in found.get("status", {}).get("conditions") or []:
        is_wrong = {"QuotaReserved": "False", "Scheduled": "False", "Unschedulable": "True"}
        is_wrong |= {"Failed": "True", "Evicted": "True", "Admitted": "False"}
        if is_wrong.get(condition["type"]) == condition.get("status"):
            text = f"{condition.get('reason')}: {condition.get('message')}"
            where = f"{found['kind']} {found['metadata']['name']}"
            yield Sign(text, where, where, as_seconds(condition.get("lastTransitionTime")))


def _of_pod(
    cluster: Cluster,
    job: Job,
    pod: Object,
    *,
    warnings: Iterable[Sign],
    unread: list[str],
    is_log_read: bool,
) -> Iterator[Sign]:
    """Yield the signs of one pod. Once it has run, problems with its start no longer count."""
    read, name = state.pod(pod, job.kind), pod["metadata"]["name"]
    place = f"node {read.node}, pod {name}" if read.node is not None else f"pod {name}"
    status = pod.get("status", {})
    containers = state.container_statuses(pod)
    ends = [
        (one, end, is_previous)
        for one in containers
        for part, is_previous in (("lastState", True), ("state", False))
        if (end := one.get(part, {}).get("terminated")) and end.get("exitCode")
    ]
    own = list(_disruption(status, place, name))
    if not ends and read.phase in ("Pending", ""):
        yield from (*own, *warnings, *_waiting(pod, containers, place))
        return
    reasons = ["Unhealthy", "Evicted"] + ["NodeNotReady"] * (not ends and _is_unready(status))
    own += [sign for sign in warnings if any(one in sign.text for one in reasons)]
    for container, end, is_previous in ends[-1:]:
        query = {"tailLines": _TAIL, "timestamps": "true"}
        query |= {"previous": "true"} if is_previous else {}
        lines: list[str] = []
        try:
            if is_log_read:
                lines = logs.text(cluster, name, container.get("name", ""), query).splitlines()
            own += read_log(lines, source=f"log of pod {name}", place=place)
        except Fault as fault:
            unread.append(str(fault))
        # An exit code says less than any other sign.
        if not own or end.get("reason") not in ("Error", "Completed", None):
            says = f"exit {end['exitCode']} ({end.get('reason', '')}) {end.get('message', '')}"
            at = as_seconds(end.get("finishedAt"))
            source = f"status of pod {name}, container {container.get('name', '')}"
            detail = tuple(line.partition(" ")[2] for line in lines)
            own.append(Sign(says.strip(), source, place, at, detail))
    yield from own


def _is_unready(status: Object) -> bool:
    """Return whether a pod is not ready now: a node that came back makes its pods ready again."""
    conditions = status.get("conditions") or []
    return any(one["type"] == "Ready" and one.get("status") == "False" for one in conditions)


def _disruption(status: Object, place: str, name: str) -> Iterator[Sign]:
    """Yield why a pod was evicted or deleted, if it was."""
    if status.get("reason"):
        text = f"{status['reason']}: {status.get('message', '')}"
        yield Sign(text, f"status of pod {name}", place, as_seconds(status.get("startTime")))
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition.get("status") == "True":
            text = f"DisruptionTarget: {condition.get('reason')}: {condition.get('message')}"
            at = as_seconds(condition.get("lastTransitionTime"))
            yield Sign(text, f"status of pod {name}", place, at)


def _waiting(pod: Object, containers: list[Object], place: str) -> Iterator[Sign]:
    """Yield what a pod that has not started waits for."""
    name = pod["metadata"]["name"]
    at = as_seconds(pod["metadata"].get("creationTimestamp"))
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            text = f"{waiting['reason']}: {waiting.get('message', '')}"
            yield Sign(text, f"status of pod {name}", place, at)
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            text = f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
            yield Sign(text, f"status of pod {name}", place, at)
