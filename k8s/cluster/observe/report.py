"""Make the report of jobs from their pods' logs: write a run folder of each for trainer.report.

code = write_report(cluster, [get_job(cluster, "digits")], out=Path("digits.html"), folder=None)

The launchers' events are only in the job's run folder. How the containers ended is used instead.
"""

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from k8s.base.errors import config_error
from k8s.cluster import jobs, state
from k8s.cluster.client.api import Cluster, Object
from k8s.cluster.jobs import Job
from k8s.cluster.observe import logs
from trainer.config.exits import Exit, Fault
from trainer.config.lines import EVENT
from trainer.diagnosis.signs import as_seconds

log = logging.getLogger("k8s")


def write_report(cluster: Cluster, found: Sequence[Job], *, out: Path, folder: Path | None) -> int:
    """Write the jobs' report, and a run folder of each in `folder`; return trainer.report's exit code.

    Raises Fault(65) if a job has no events, Fault(69) if none of its logs could be read.
    """
    with tempfile.TemporaryDirectory() as temporary:
        above = folder or Path(temporary)
        runs = [_save_run(cluster, job, above / job.name) for job in found]
        # In a separate process, because it needs packages that are not needed here.
        command = [sys.executable, "-m", "trainer.report", *map(str, runs), "-o", str(out)]
        return subprocess.run(command, check=False).returncode


def _save_run(cluster: Cluster, job: Job, folder: Path) -> Path:
    """Write the events of rank 0, and events that show how each pod's containers ended."""
    events: list[str] = []
    attempts: dict[str, list[str]] = {}
    unread: list[Fault] = []
    for pod in jobs.pod_objects(cluster, job):
        try:
            for written, attempt in _containers(cluster, job, pod):
                events += written
                attempts.setdefault(pod["metadata"]["name"], []).extend(attempt)
        except Fault as fault:
            log.warning("%s; it is missing in the report", fault)
            unread.append(fault)
    if not events:
        raise (
            unread[0]
            if unread
            else Fault(
                Exit.DATA,
                f"{cluster.where}: no event in the logs of job {job.name}'s pods; if they are gone, "
                "read its run folder on its volume: python -m trainer.report FOLDER",
            )
        )
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        _write(folder / "metrics.jsonl", events)
        for name, lines in attempts.items():
            _write(folder / "logs" / f"{name}.jsonl", lines)
    except OSError as error:
        raise config_error(f"--save {folder}: {error.strerror}") from None
    return folder


def _containers(cluster: Cluster, job: Job, pod: Object) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the events in the log of each of the trainer's attempts, and events of how it ended."""
    read, name = state.pod(pod, job.kind), pod["metadata"]["name"]
    place = {"event": "attempt", "host": name, "node": read.node}
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status.get("name", read.container) != read.container:
            continue
        for part, query in (("lastState", {"previous": "true"}), ("state", {})):
            found = status.get(part, {})
            end = found.get("terminated", {})
            began = as_seconds((end or found.get("running", {})).get("startedAt"))
            if began is None:
                continue
            text = logs.text(cluster, name, read.container, query)
            written = [line for line in text.splitlines() if line.startswith(EVENT)]
            attempt = [{"action": "launched", "time": began, "began": began}]
            if read.ranks:
                attempt += [{"action": "started", "time": began, "first_rank": read.ranks[0]}]
            if end:
                code, ended = state.unshifted(end["exitCode"]), as_seconds(end.get("finishedAt"))
                # The cluster's times are whole seconds.
                at = max(ended or began, next(filter(None, map(_time, reversed(written))), 0.0))
                reason = f"{end.get('reason', '')} {end.get('message', '')}".strip()
                attempt += [{"action": "ended", "time": at, "exit": code, "reason": reason}]
            yield written, [json.dumps(place | one) for one in attempt]


def _time(line: str) -> float:
    try:
        return float(json.loads(line)["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0  # a cut line, or one of another program


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
