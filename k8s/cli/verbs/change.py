"""The verbs that submit a job, wait for it, change it and delete it."""

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from k8s.cli.verbs.common import Name, Save, app, log_state, print_line
from k8s.cluster import control, jobs
from k8s.cluster.client.api import Forbidden
from k8s.cluster.observe.save_logs import save_logs
from k8s.cluster.profile import profile as ask_for_profile
from k8s.cluster.submit.one_job import read_manifests
from k8s.cluster.submit.several_jobs import Wanted, submit_all
from k8s.cluster.sync import sync as put_code
from trainer.config.exits import Exit

log = logging.getLogger("k8s")


@app.command()
def submit(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="manifests that render.py wrote, one job each; - reads standard input"),
    ],
    *,
    wait_: Annotated[
        bool, typer.Option("--wait", help="wait until the jobs end; exit with their exit code")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="like --wait, and show the logs until then")
    ] = False,
    force: Annotated[bool, typer.Option(help="take fields over from other field managers")] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="delete the jobs of these names first; their claims stay"),
    ] = False,
) -> None:
    """Submit rendered jobs by server-side apply, after a dry run of every object."""
    found = {file: read_manifests(file) for file in files}
    wanted = Wanted(wait_ or follow, print_line if follow else None, log_state, force, replace)
    try:
        raise typer.Exit(submit_all(context.obj(), found, wanted))
    except BrokenPipeError:
        text = "the output was closed; the jobs go on, and `wait NAME` gives their codes (exit %d)"
        log.error(text, Exit.PEER)  # noqa: TRY400  # one line
        raise typer.Exit(Exit.PEER) from None


@app.command("wait")
def wait_for(
    context: typer.Context,
    name: Name,
    *,
    timeout: Annotated[float | None, typer.Option(min=0, help="seconds, then exit with 69")] = None,
) -> None:
    """Wait until a job has ended, and exit with its exit code."""
    on_change = partial(log_state, "")
    raise typer.Exit(jobs.wait(context.obj(), name, timeout=timeout, on_change=on_change))


@app.command()
def suspend(context: typer.Context, name: Name) -> None:
    """Stop a job's pods and keep the job; the pods save a checkpoint first."""
    cluster = context.obj()
    control.suspend(cluster, jobs.get_job(cluster, name))


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Let a suspended or cancelled job continue."""
    cluster = context.obj()
    control.resume(cluster, jobs.get_job(cluster, name))


@app.command()
def cancel(context: typer.Context, name: Name, *, folder: Save = None) -> None:
    """End a job and keep its objects; its pods save a checkpoint, and its exit code is then 143."""
    cluster = context.obj()
    job = jobs.get_job(cluster, name)
    if folder:
        for path in save_logs(cluster, job, folder):
            log.info("wrote %s", path)
    control.cancel(cluster, job)
    log.info("cancelled %s; delete %s removes it", name, name)


@app.command()
def scale(
    context: typer.Context,
    name: Name,
    nodes: Annotated[int, typer.Argument(help="the new number of nodes")],
) -> None:
    """Change the number of nodes of an elastic job, within its min and max."""
    cluster = context.obj()
    control.scale(cluster, jobs.get_job(cluster, name), nodes)
    log.info("%s scales to %d nodes", name, nodes)


@app.command()
def profile(context: typer.Context, name: Name) -> None:
    """Profile the next five steps of every rank; print for each pod where the traces will be."""
    cluster = context.obj()
    lines, code = ask_for_profile(cluster, jobs.get_job(cluster, name))
    for line in lines:
        print_line(line)
    raise typer.Exit(code)


@app.command()
def sync(
    context: typer.Context,
    name: Name,
    folder: Annotated[Path, typer.Argument(help="the folder of code.path")] = Path(),
) -> None:
    """Put changed code into a job's running pods and restart the ranks, without new pods."""
    cluster = context.obj()
    for line in put_code(cluster, jobs.get_job(cluster, name), folder):
        print_line(line)


@app.command()
def delete(context: typer.Context, name: Name) -> None:
    """Delete a job and everything that was rendered with it; its volumes stay."""
    cluster = context.obj()
    for deleted in jobs.delete_by_name(cluster, name):
        log.info("deleted %s", deleted)


@app.command()
def gc(
    context: typer.Context,
    *,
    older_than: Annotated[
        float, typer.Option(min=0, max=1e6, help="hours since a job ended")
    ] = 24.0,
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
