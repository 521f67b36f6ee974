"""Everything that tells what happened to a job, in a folder: for whom is asked, and for later.

for path in save(cluster, job, Path("digits-logs")): print(path)
"""

import os
from collections.abc import Iterator
from pathlib import Path

from k8s.base.yaml_text import dump
from k8s.cluster import jobs, logs, state
from k8s.cluster.client.api import Cluster, Object
from k8s.cluster.jobs import Job
from k8s.cluster.logs import ALL, Wanted
from trainer.config.exits import Exit, Fault


def save(
    cluster: Cluster,
    job: Job,
    folder: Path,
    *,
    wanted: Wanted = ALL,
    since: int | None = None,
) -> Iterator[Path]:
    """Write the job, its events, and each pod's spec, log and previous log; yield what is written.

    A file is there whole or not at all. Raises Fault(64) when the folder cannot be written, and at the
    end Fault(69) when a log could not be read: that of a lost machine keeps none from the others'.
    """
    pods = [item for item in jobs.pods_of(cluster, job) if wanted.pod(state.pod(item, job.kind))]
    unread: list[Fault] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _files(cluster, job, pods, since=since, unread=unread):
            yield _write(folder / name, text)
    except OSError as error:
        raise Fault(Exit.CONFIG, f"--save {folder}: {error.strerror}") from None
    if unread:
        rest = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise Fault(unread[0].code, f"{unread[0]}{rest}")


def _files(
    cluster: Cluster, job: Job, pods: list[Object], *, since: int | None, unread: list[Fault]
) -> Iterator[tuple[str, str]]:
    """Yield the files' names and texts; an empty log makes none, one that cannot be read is `unread`."""
    names = {pod["metadata"]["name"] for pod in pods}
    yield "job.yaml", dump([job.found] if job.wrapper is None else [job.wrapper, job.found])
    yield "events.txt", "".join(f"{_line(e)}\n" for e in jobs.events_of(cluster, job, names))
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
    """Yield the logs of a pod's containers, and of those before their last restart."""
    name, containers = pod["metadata"]["name"], _containers(pod)
    for container, restarts in containers:
        file = f"{name}.{container}" if len(containers) > 1 else name
        if now := logs.text(cluster, name, container, query):
            yield f"{file}.log", now
        previous = {**query, "previous": "true"}
        if restarts and (before := logs.text(cluster, name, container, previous)):
            yield f"{file}.previous.log", before


def _containers(pod: Object) -> list[tuple[str, int]]:
    """Return a pod's containers, in the order they run, and how often each restarted."""
    status, spec = pod.get("status", {}), pod.get("spec", {})
    parts = ("initContainer", "container")
    told = [one for part in parts for one in status.get(f"{part}Statuses") or []]
    restarts = {one.get("name", ""): one.get("restartCount", 0) for one in told}
    names = [one["name"] for part in parts for one in spec.get(f"{part}s") or []]
    return [(name, restarts.get(name, 0)) for name in names or [""]]


def _line(event: Object) -> str:
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
    who = event["involvedObject"]["name"]
    words = f"{at} {event.get('type')} {who}: {event.get('reason')}: {event.get('message')}"
    return " ".join(words.split()) + times


def _write(path: Path, text: str) -> Path:
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)  # noqa: PTH105
    return path
