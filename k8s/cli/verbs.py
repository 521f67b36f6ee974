"""Operate jobs on a cluster, of any launcher.

python -m k8s submit build/digits-ddp/jobset.yaml --wait
python -m k8s status digits-ddp
"""

import dataclasses
import logging
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from k8s.base.errors import config_error
from k8s.cli import tables
from k8s.cluster import control, doctor, forward, jobs
from k8s.cluster.client.api import Cluster, Forbidden
from k8s.cluster.client.connect import connect
from k8s.cluster.observe import logs
from k8s.cluster.observe.job_progress import pod_metrics, read_progress
from k8s.cluster.observe.report import write_report
from k8s.cluster.observe.save_logs import save_logs
from k8s.cluster.observe.why import why as explain
from k8s.cluster.submit import read_manifests
from k8s.cluster.submit_several import Wanted, submit_all
from k8s.plan.job_kind import State
from trainer.config.printable import printable

log = logging.getLogger("k8s")

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="the job's name, as in its job file")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Save = Annotated[
    Path | None,
    typer.Option("--save", help="write the job, events, pods and all logs to this folder"),
]
Since = Annotated[int | None, typer.Option(min=1, help="only the last so many seconds")]


@app.callback()
def _common(
    context: typer.Context,
    cluster: Annotated[str | None, typer.Option("--context", help="a kubeconfig context")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="default: the context's own")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="seconds that a request may take, all attempts together")
    ] = 30.0,
) -> None:
    def connected() -> Cluster:
        found = connect(context=cluster, namespace=namespace, timeout=timeout)
        context.call_on_close(found.close)
        log.info(found.where)
        return found

    context.obj = connected


def _log_state(of: str, state: State) -> None:
    restarts = f", {state.restarts} restarts" if state.restarts else ""
    log.info("%s%s%s%s%s", of, state.phase, restarts, ": " if state.reason else "", state.reason)


def _print(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")  # at once: several threads may print
    sys.stdout.flush()


@app.command()
def submit(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="what render.py wrote, a job each; - reads standard input"),
    ],
    *,
    wait_: Annotated[bool, typer.Option("--wait", help="wait for the end; exit as it did")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="show the logs until the end; exit as it did")
    ] = False,
    force: Annotated[bool, typer.Option(help="take fields over from other owners")] = False,
) -> None:
    """Apply rendered jobs: on the server's side, after a dry run there."""
    found = {file: read_manifests(file) for file in files}
    wanted = Wanted(wait_ or follow, _print if follow else None, _log_state, force)
    raise typer.Exit(submit_all(context.obj(), found, wanted))


@app.command()
def status(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show a job's state, pods, progress and warnings."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)
    pods = jobs.pods(cluster, job)
    found = read_progress(cluster, pods)
    warnings = jobs.warnings(cluster, job, pods)[-5:] + ([found.problem] if found.problem else [])
    if not as_json:
        return tables.print_status(job, pods, found, warnings)
    return tables.print_json(tables.status_as_dict(job, pods, found, warnings))


@app.command()
def why(context: typer.Context, name: Name) -> None:
    """Say why a job failed or does not start: what was first, the cause, the evidence, what to do."""
    cluster = context.obj()
    for line in explain(cluster, jobs.get_job(cluster, name)):
        _print(line)


@app.command()
def report(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="the jobs' names", metavar="NAME...")],
    *,
    out: Annotated[Path | None, typer.Option("-o", help="default: NAME.html")] = None,
    folder: Annotated[Path | None, typer.Option("--save", help="keep the run folders here")] = None,
) -> None:
    """Write what the logs of a job, or of several, hold as one HTML file: curves, attempts, faults."""
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
        bool, typer.Option("--follow", "-f", help="go on until the job ends")
    ] = False,
    node: Annotated[list[int] | None, typer.Option(help="only these nodes")] = None,
    rank: Annotated[list[int] | None, typer.Option(help="only these ranks")] = None,
    since: Since = None,
    previous: Annotated[
        bool, typer.Option(help="of the containers before the last restart")
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
    if unread := logs.follow(cluster, job, _print, query=query, selection=selection):
        raise unread


@app.command("wait")
def wait_for(
    context: typer.Context,
    name: Name,
    *,
    timeout: Annotated[float | None, typer.Option(help="seconds; exit 69 after them")] = None,
) -> None:
    """Wait until a job has ended, and exit with its exit code."""
    on_change = partial(_log_state, "")
    raise typer.Exit(jobs.wait(context.obj(), name, timeout=timeout, on_change=on_change))


@app.command()
def suspend(context: typer.Context, name: Name) -> None:
    """Stop a job's pods, which save a checkpoint first, and keep the job."""
    cluster = context.obj()
    control.suspend(cluster, jobs.get_job(cluster, name))


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Let a suspended or cancelled job go on."""
    cluster = context.obj()
    control.resume(cluster, jobs.get_job(cluster, name))


@app.command()
def cancel(context: typer.Context, name: Name, *, folder: Save = None) -> None:
    """End a job and keep its objects: its pods save a checkpoint; it then counts as ended, with 143."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)
    if folder:
        for path in save_logs(cluster, job, folder):
            log.info("wrote %s", path)
    control.cancel(cluster, job)
    log.info("cancelled %s; delete %s removes it", name, name)


@app.command()
def scale(
    context: typer.Context, name: Name, nodes: Annotated[int, typer.Argument(help="how many")]
) -> None:
    """Give an elastic job another number of nodes, within its min and max."""
    cluster = context.obj()
    control.scale(cluster, jobs.get_job(cluster, name), nodes)
    log.info("%s scales to %d nodes", name, nodes)


@app.command()
def top(
    context: typer.Context,
    name: Name,
    *,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two updates")] = 5.0,
    once: Annotated[bool, typer.Option(help="print once")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what every rank uses: GPUs by the job's events, CPU and memory by the cluster's metrics."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)

    def measure() -> Any:
        now = jobs.refresh(cluster, job)
        pods = jobs.pods(cluster, now)
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
    port: Annotated[int, typer.Option(min=0, max=65535, help="of this machine; 0: any")] = 6006,
) -> None:
    """Open the job's TensorBoard on a port of this machine, until interrupted."""
    cluster = context.obj()
    pod = forward.tensorboard(cluster, name)

    def ready(opened: int) -> None:
        log.info("http://127.0.0.1:%d leads to TensorBoard in %s; interrupt to end", opened, pod)

    forward.forward(cluster, pod, remote=6006, local=port, ready=ready, failed=log.warning)


@app.command()
def delete(context: typer.Context, name: Name) -> None:
    """Delete a job and everything that was rendered with it; its volumes stay."""
    cluster = context.obj()
    for deleted in jobs.delete(cluster, jobs.get_job(cluster, name)):
        log.info("deleted %s", deleted)


@app.command("list")
def list_jobs(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the jobs of the namespace."""
    found = jobs.list_jobs(context.obj())
    if as_json:
        return tables.print_json([tables.job_as_dict(job) for job in found])
    return tables.print_jobs(found)


@app.command()
def gc(
    context: typer.Context,
    *,
    older_than: Annotated[float, typer.Option(min=0, max=1e6, help="hours since the end")] = 24.0,
    dry_run: Annotated[bool, typer.Option(help="only list the jobs that would be deleted")] = False,
) -> None:
    """Delete the jobs that ended, or were cancelled, long enough ago."""
    cluster = context.obj()
    moment = datetime.now(UTC) - timedelta(hours=older_than)
    for job in jobs.ended_before(jobs.list_jobs(cluster), moment):
        if dry_run:
            log.info("would delete %s, %s at %s", job.name, job.state.phase, job.state.ended_at)
            continue
        try:
            for deleted in jobs.delete(cluster, job):
                log.info("deleted %s", deleted)
        except Forbidden as refusal:  # a Role may be for some jobs only
            log.warning("cannot delete %s: %s", job.name, refusal)


@app.command("doctor")
def examine(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Report what the cluster can run: launchers, devices, storage, queues, quota, security."""
    found = [*doctor.examine(context.obj())]
    if as_json:
        return tables.print_json([dataclasses.asdict(finding) for finding in found])
    return tables.print_findings(found)
