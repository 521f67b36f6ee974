"""The verbs that show a job, or the cluster, and change nothing."""

import dataclasses
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from k8s.base.errors import config_error
from k8s.cli import tables
from k8s.cli.verbs.common import AsJson, Name, Save, app, print_line
from k8s.cluster import doctor, forward, jobs
from k8s.cluster.observe import logs
from k8s.cluster.observe.job_progress import pod_metrics, read_progress
from k8s.cluster.observe.report import write_report
from k8s.cluster.observe.save_logs import save_logs
from k8s.cluster.observe.why import why as explain

log = logging.getLogger("k8s")


@app.command()
def status(
    context: typer.Context,
    name: Name,
    *,
    every_pod: Annotated[
        bool, typer.Option("--all", help="show every pod, even if there are more than 40")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job's state, pods, progress and warnings; of more than 40 pods, those with a problem."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)
    pods = jobs.pods(cluster, job)
    found = read_progress(cluster, pods)
    warnings = jobs.warnings(cluster, job, pods)[-5:] + ([found.problem] if found.problem else [])
    if not as_json:
        return tables.print_status(job, pods, found, warnings, every_pod=every_pod)
    return tables.print_json(tables.status_as_dict(job, pods, found, warnings))


@app.command()
def why(context: typer.Context, name: Name) -> None:
    """Say why a job failed or does not start: what failed first, the cause, evidence, what to do."""
    cluster = context.obj()
    for line in explain(cluster, jobs.get_job(cluster, name)):
        print_line(line)


@app.command()
def report(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="the jobs' names", metavar="NAME...")],
    *,
    out: Annotated[Path | None, typer.Option("-o", help="default: NAME.html")] = None,
    folder: Annotated[
        Path | None, typer.Option("--save", help="keep the run folders in this folder")
    ] = None,
) -> None:
    """Write one HTML file about one or more jobs, from their logs: curves, attempts, faults."""
    cluster = context.obj()
    found = [jobs.get_job(cluster, name) for name in names]
    code = write_report(cluster, found, out=out or Path(f"{names[0]}.html"), folder=folder)
    raise typer.Exit(code)


@app.command("logs")
def show_logs(  # noqa: PLR0913  # its options
    context: typer.Context,
    name: Name,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="show new lines until the job ends")
    ] = False,
    node: Annotated[list[int] | None, typer.Option(help="only these nodes")] = None,
    rank: Annotated[list[int] | None, typer.Option(help="only these ranks")] = None,
    since: Annotated[int | None, typer.Option(min=1, help="seconds to go back")] = None,
    previous: Annotated[
        bool, typer.Option(help="logs of the containers before the last restart")
    ] = False,
    folder: Save = None,
) -> None:
    """Show the logs of all ranks, each line with its node and rank."""
    if folder and (follow or previous):
        raise config_error(
            "--save: saves all logs, previous ones too; leave out --follow and --previous"
        )
    cluster = context.obj()
    job = jobs.get_job(cluster, name)
    selection = logs.select(cluster, job, node, rank)
    if folder:
        for path in save_logs(cluster, job, folder, selection=selection, since=since):
            log.info("wrote %s", path)
        return
    query: dict[str, object] = {"follow": "true"} if follow else {}
    query |= {"previous": "true"} if previous else {}
    query |= {"sinceSeconds": since} if since is not None else {}
    if unread := logs.follow(cluster, job, print_line, query=query, selection=selection):
        raise unread


@app.command()
def top(
    context: typer.Context,
    name: Name,
    *,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two updates")] = 5.0,
    once: Annotated[bool, typer.Option(help="print once")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what every rank uses, from the job's events, and every pod, from metrics-server."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)

    def measure() -> Any:
        now = jobs.refresh(cluster, job)
        pods = jobs.pods(cluster, now, newest=True)
        found = read_progress(cluster, pods)
        metrics = pod_metrics(cluster, name)
        rows = tables.usage_rows(pods, found, metrics)
        if as_json:
            return rows
        return tables.usage_table(now, found, rows, measured=metrics is not None)

    if as_json:
        return tables.print_json(measure())
    if once or not sys.stdout.isatty():
        return Console().print(measure())
    with Live(measure(), auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(measure(), refresh=True)


@app.command("port-forward")
def port_forward(
    context: typer.Context,
    name: Name,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="local port; 0: any free one")] = 6006,
) -> None:
    """Open the job's TensorBoard on a port of this machine, until interrupted."""
    cluster = context.obj()
    pod = forward.tensorboard(cluster, name)

    def ready(opened: int) -> None:
        log.info("http://127.0.0.1:%d leads to TensorBoard in %s; interrupt to end", opened, pod)

    forward.forward(cluster, pod, remote=6006, local=port, ready=ready, failed=log.warning)


@app.command("list")
def list_jobs(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the jobs of the namespace."""
    found = jobs.list_jobs(context.obj())
    if as_json:
        return tables.print_json([tables.job_as_dict(job) for job in found])
    return tables.print_jobs(found)


@app.command("doctor")
def examine(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Report what the cluster can run: launchers, devices, storage, queues, quota, security."""
    found = [*doctor.examine(context.obj())]
    if as_json:
        return tables.print_json([dataclasses.asdict(finding) for finding in found])
    return tables.print_findings(found)
