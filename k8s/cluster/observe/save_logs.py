"""Save a job, its events, pods and logs to a folder, for a bug report.

for path in save_logs(cluster, job, Path("digits-logs")): print(path)
"""

from collections.abc import Iterator
from pathlib import Path

from k8s.base.errors import config_error
from k8s.base.yaml_text import dump
from k8s.cluster import jobs, state
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.jobs import Job
from k8s.cluster.observe import logs
from k8s.cluster.observe.logs import ALL, Selection
from trainer.config.exits import Fault


def save_logs(
    cluster: Cluster,
    job: Job,
    folder: Path,
    *,
    selection: Selection = ALL,
    since: int | None = None,
) -> Iterator[Path]:
    """Write the job, its events, and each pod's spec, log and previous log; yield the paths.

    No file is half written. Raises Fault(64) if the folder cannot be written. If events or a log could
    not be read, raises the fault after the other logs are saved.
    """
    found = jobs.pod_objects(cluster, job)
    pods = [item for item in found if selection.has_pod(state.pod(item, job.kind))]
    unread: list[Fault] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _files(cluster, job, pods, since=since, unread=unread):
            part, target = folder / f".{name}.part", folder / name
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
            part.replace(target)
            yield target
    except OSError as error:
        raise config_error(f"--save {folder}: {error.strerror}") from None
    if unread:
        rest = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise Fault(unread[0].code, f"{unread[0]}{rest}")


def _files(
    cluster: Cluster, job: Job, pods: list[Object], *, since: int | None, unread: list[Fault]
) -> Iterator[tuple[str, str]]:
    """Yield the files' names and texts; an empty log makes no file. Adds unreadable logs to `unread`."""
    names = {pod["metadata"]["name"] for pod in pods}
    yield "job.yaml", dump([job.manifest] if job.wrapper is None else [job.wrapper, job.manifest])
    try:
        yield "events.txt", "".join(f"{_line(e)}\n" for e in jobs.events(cluster, job, names))
    except Forbidden as fault:
        unread.append(fault)
    query: dict[str, object] = {"timestamps": "true"}
    if since is not None:
        query["sinceSeconds"] = since
    for pod in pods:
        yield f"{pod['metadata']['name']}.yaml", dump([pod])
        try:
            yield from _logs(cluster, pod, query)
        except Fault as fault:
            unread.append(fault)


def _logs(cluster: Cluster, pod: Object, query: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the logs of a pod's containers, now and before their last restart."""
    name, containers = pod["metadata"]["name"], _containers(pod)
    for container, restarts in containers:
        file = f"{name}.{container}" if len(containers) > 1 else name
        if now := logs.text(cluster, name, container, query):
            yield f"{file}.log", now
        previous = {**query, "previous": "true"}
        if restarts and (before := logs.text(cluster, name, container, previous)):
            yield f"{file}.previous.log", before


def _containers(pod: Object) -> list[tuple[str, int]]:
    """Return a pod's containers, in the order in which they run, with the restarts of each."""
    spec, statuses = pod.get("spec", {}), state.container_statuses(pod)
    restarts = {one.get("name", ""): one.get("restartCount", 0) for one in statuses}
    parts = ("initContainers", "containers")
    names = [one["name"] for part in parts for one in spec.get(part) or []]
    return [(name, restarts.get(name, 0)) for name in names or [""]]


def _line(event: Object) -> str:
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
    name = event["involvedObject"]["name"]
    text = f"{at} {event.get('type')} {name}: {event.get('reason')}: {event.get('message')}"
    return " ".join(text.split()) + times
