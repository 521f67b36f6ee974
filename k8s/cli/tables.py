"""Output of the verbs of `python -m k8s`: tables on a terminal, JSON for programs.

print_status(job, pods, found, warnings, every_pod=False)
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from k8s.cluster.doctor import Finding
from k8s.cluster.jobs import Job
from k8s.cluster.observe.job_progress import LogEvents, Progress, Usage
from k8s.cluster.state import Pod
from trainer.config.printable import printable

_GIB = 2**30
_MANY = 40  # pods: more are too many to read
_OTHERS = 3  # uses of time other than training that a job's progress names
_NOT_MEASURED = Usage(-1, None, None, None, None)


def print_json(value: Any) -> None:
    print(json.dumps(value))


def job_as_dict(job: Job) -> dict[str, Any]:
    return {"name": job.name, "launcher": job.kind.launcher, **dataclasses.asdict(job.state)}


def print_status(
    job: Job, pods: list[Pod], found: LogEvents, warnings: list[str], *, every_pod: bool
) -> None:
    """Print a job's state, progress, pods and warnings.

    If there are more than 40 pods, the table has at most 40: those with a problem, or else the first.
    """
    console = Console()
    state = job.state
    head = f" ({job.kind.launcher}) is "
    console.print(
        Text.assemble((job.name, "bold"), head, (state.phase, "bold"), " ", printable(state.reason))
    )
    if job.code:
        text = ", ".join(f"{name} {value}" for name, value in job.code.items())
        console.print(f"code: {printable(text)}", markup=False)
    if found.progress:
        console.print(progress_text(found.progress), soft_wrap=True)
    table = Table("node", _whole("pod"), _whole("on"), "phase", "restarts", _whole("reason"))
    shown = pods
    if len(pods) > _MANY and not every_pod:
        at_work = ("Running", "Succeeded")
        odd = [pod for pod in pods if pod.restarts or pod.reason or pod.phase not in at_work]
        shown = (odd or pods)[:_MANY]
    for pod in shown:
        table.add_row(
            _number(pod.node),
            *map(_text, (pod.name, pod.host, pod.phase)),
            str(pod.restarts),
            _text(pod.reason),
        )
    console.print(table)
    if left := Counter(pod.phase for pod in pods) - Counter(pod.phase for pod in shown):
        text = ", ".join(f"{count} {phase}" for phase, count in left.most_common())
        console.print(printable(f"not shown: {text}; --all shows every pod"), markup=False)
    for warning in warnings:
        console.print(printable(warning), style="yellow", markup=False)


def status_as_dict(
    job: Job, pods: list[Pod], found: LogEvents, warnings: list[str]
) -> dict[str, Any]:
    """Return what `print_status` prints, as data."""
    return {
        **job_as_dict(job),
        "code": job.code,
        "pods": [dataclasses.asdict(pod) for pod in pods],
        "progress": dataclasses.asdict(found.progress) if found.progress else None,
        "warnings": warnings,
    }


def progress_text(progress: Progress) -> str:
    of = "" if progress.steps is None else f" of {progress.steps}"
    parts = [f"step {progress.step}{of}"]
    parts += [f"loss {progress.loss:.4g}"] if progress.loss is not None else []
    if (speed := progress.samples_per_s) is not None:
        parts.append(f"{speed:,.0f} samples/s" if speed >= 1000 else f"{speed:.4g} samples/s")
    if progress.goodput is not None:
        parts.append(f"goodput {progress.goodput:.0%}{_others(progress.spent_s)}")
    if progress.seconds_left is not None:
        parts.append(f"{timedelta(seconds=round(progress.seconds_left))} left")
    return ", ".join(parts)


def _others(spent: Mapping[str, float]) -> str:
    """Return what took most of the time other than training, in brackets."""
    shares = {cause: seconds / (sum(spent.values()) or 1) for cause, seconds in spent.items()}
    most = sorted(shares.keys() - {"training"}, key=shares.__getitem__, reverse=True)[:_OTHERS]
    text = ", ".join(f"{cause} {shares[cause]:.0%}" for cause in most if shares[cause] >= 0.01)
    return text and f" ({text})"


def _whole(title: str) -> Column:
    """Return a column that breaks long words: cut short, the names of a matrix look the same."""
    return Column(title, overflow="fold")


def _text(text: str) -> Text:
    return Text(printable(text))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def print_jobs(jobs: Iterable[Job]) -> None:
    """Print a line for each job."""
    table = Table(_whole("name"), "launcher", "state", "restarts", _whole("reason"))
    for job in jobs:
        state = job.state
        table.add_row(
            job.name, job.kind.launcher, state.phase, str(state.restarts), _text(state.reason)
        )
    Console().print(table)


def print_findings(found: Iterable[Finding]) -> None:
    marks = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    table = Table("", "about", _whole("found"))
    for finding in found:
        table.add_row(marks[finding.good], finding.about, _text(finding.text))
    Console().print(table)


def usage_rows(
    pods: Iterable[Pod], found: LogEvents, measured: Mapping[str, tuple[float, int]] | None
) -> list[dict[str, Any]]:
    """Return a row for every rank, or for a pod whose ranks are not known. None means not measured."""
    ranks: dict[int | None, Usage] = {one.rank: one for one in found.ranks}
    rows = []
    for pod in pods:
        cores, size = (measured or {}).get(pod.name, (None, None))
        for rank in pod.ranks or [None]:
            use = ranks.get(rank, _NOT_MEASURED)
            rows.append(
                {
                    "rank": rank,
                    "node": pod.node,
                    "pod": pod.name,
                    "phase": pod.phase,
                    "cpu": use.cpu,
                    "gpu": use.busy,
                    "gpu_memory": use.memory,
                    "gpu_memory_of": use.memory_of,
                    "pod_cpu": cores,
                    "pod_memory": size,
                }
            )
    return rows


def usage_table(
    job: Job, found: LogEvents, rows: Iterable[Mapping[str, Any]], *, measured: bool
) -> Group:
    """Return the output of `top`: a line for every rank; the first rank's also has the pod's figures."""
    figures = ("CPU", "GPU", "GPU memory", "pod's CPU", "pod's memory")
    table = Table("rank", "node", _whole("pod"), *figures)
    before = None
    for row in rows:
        first, before = row["pod"] != before, row["pod"]
        table.add_row(
            _number(row["rank"]),
            _number(row["node"]),
            _text(row["pod"]),
            "" if row["cpu"] is None else f"{row['cpu']:.2f}",
            "" if row["gpu"] is None else f"{row['gpu']:.0%}",
            _gib(row["gpu_memory"], row["gpu_memory_of"]),
            f"{row['pod_cpu']:.2f}" if first and row["pod_cpu"] is not None else "",
            _gib(row["pod_memory"]) if first else "",
        )
    head = f"{job.name} ({job.kind.launcher}) is {job.state.phase}"
    lines = [Text(head), Text(progress_text(found.progress))] if found.progress else [Text(head)]
    if found.problem:
        lines.append(_text(found.problem))
    if not measured:
        lines.append(
            Text("no metrics of pods: metrics-server is not installed, or you may not read it")
        )
    return Group(*lines, table)


def _gib(size: int | None, of: int | None = None) -> str:
    if size is None:
        return ""
    return f"{size / _GIB:.1f}" + (f" of {of / _GIB:.1f}" if of else "") + " GiB"
