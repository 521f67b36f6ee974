"""Operates jobs on a cluster, whatever launcher they were rendered for.

python -m k8s submit build/digits-ddp/jobset.yaml --wait
python -m k8s status digits-ddp
"""

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from k8s.cli import show
from k8s.cluster import control, doctor, forward, jobs, logs, progress, save, submission
from k8s.cluster.client.api import Cluster
from k8s.cluster.client.connect import connect
from k8s.plan.status import State
from trainer.config.exits import Exit, Fault

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="the job's name, as in its job file")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
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
        _say(found.where)
        return found

    context.obj = connected


def _say(words: str) -> None:
    print(f"k8s: {words}", file=sys.stderr, flush=True)


def _tell(state: State) -> None:
    restarts = f", {state.restarts} restarts" if state.restarts else ""
    _say(f"{state.phase}{restarts}{': ' if state.reason else ''}{state.reason}")


def _show(line: str) -> None:
    print(line, flush=True)


@app.command()
def submit(
    context: typer.Context,
    manifest: Annotated[Path, typer.Argument(help="what render.py wrote; - reads standard input")],
    *,
    wait_: Annotated[bool, typer.Option("--wait", help="wait for the end; exit as it did")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="show the logs until the end; exit as it did")
    ] = False,
    force: Annotated[bool, typer.Option(help="take fields over from other owners")] = False,
) -> None:
    """Apply a rendered job: on the server's side, after a dry run there."""
    manifests = submission.read(manifest)
    cluster = context.obj()
    name = submission.submit(cluster, manifests, force=force)
    _say(f"submitted {name}")
    if follow:
        logs.follow(cluster, jobs.look(cluster, name), _show, query={"follow": "true"})
    if wait_ or follow:
        raise typer.Exit(jobs.wait(cluster, name, timeout=None, told=_tell))


@app.command()
def status(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show how a job is: its state, its pods, how far it has come, and what went wrong."""
    cluster = context.obj()
    job = jobs.look(cluster, name)
    pods = jobs.pods(cluster, job)
    said = progress.look(cluster, pods)
    warnings = jobs.events(cluster, job, pods)[-5:] + ([said.problem] if said.problem else [])
    if not as_json:
        return show.status(job, pods, said, warnings)
    return show.as_json(show.told(job, pods, said, warnings))


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
    folder: Annotated[
        Path | None,
        typer.Option("--save", help="write the job, events, pods and all logs to this folder"),
    ] = None,
) -> None:
    """Show what every rank says, each line with its node and rank."""
    if folder and (follow or previous):
        raise Fault(
            Exit.CONFIG, "--save: takes what there is, previous logs too; leave out the rest"
        )
    cluster = context.obj()
    job = jobs.look(cluster, name)
    wanted = logs.wanted(cluster, job, node, rank)
    if folder:
        for path in save.save(cluster, job, folder, wanted=wanted, since=since):
            _say(f"wrote {path}")
        return
    query: dict[str, object] = {"follow": "true"} if follow else {}
    query |= {"previous": "true"} if previous else {}
    query |= {"sinceSeconds": since} if since is not None else {}
    if unread := logs.follow(cluster, job, _show, query=query, wanted=wanted):
        raise unread


@app.command("wait")
def wait_for(
    context: typer.Context,
    name: Name,
    *,
    timeout: Annotated[float | None, typer.Option(help="seconds; exit 69 after them")] = None,
) -> None:
    """Wait until a job has ended, and exit with the code that speaks for it."""
    raise typer.Exit(jobs.wait(context.obj(), name, timeout=timeout, told=_tell))


@app.command()
def suspend(context: typer.Context, name: Name) -> None:
    """Stop a job's pods, which save a checkpoint first, and keep the job."""
    cluster = context.obj()
    control.suspend(cluster, jobs.look(cluster, name), on=True)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Let a suspended or cancelled job go on."""
    cluster = context.obj()
    control.suspend(cluster, jobs.look(cluster, name), on=False)


@app.command()
def cancel(
    context: typer.Context,
    name: Name,
    *,
    folder: Annotated[
        Path | None, typer.Option("--save", help="first write events, pods and logs to this folder")
    ] = None,
) -> None:
    """End a job and keep its objects: its pods save a checkpoint; it then counts as ended, with 143."""
    cluster = context.obj()
    job = jobs.look(cluster, name)
    if folder:
        for path in save.save(cluster, job, folder):
            _say(f"wrote {path}")
    control.cancel(cluster, job)
    _say(f"cancelled {name}; delete {name} removes it")


@app.command()
def scale(
    context: typer.Context, name: Name, nodes: Annotated[int, typer.Argument(help="how many")]
) -> None:
    """Give an elastic job another number of nodes, within its min and max."""
    cluster = context.obj()
    control.scale(cluster, jobs.look(cluster, name), nodes)
    _say(f"{name} has {nodes} nodes to go to")


@app.command()
def top(
    context: typer.Context,
    name: Name,
    *,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two looks")] = 5.0,
    once: Annotated[bool, typer.Option(help="look once")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what every rank uses: GPUs by the job's words, CPU and memory by the cluster's metrics."""
    cluster = context.obj()
    job = jobs.look(cluster, name)

    def look() -> Any:
        now = jobs.again(cluster, job)
        pods = jobs.pods(cluster, now)
        said = progress.look(cluster, pods)
        measured = progress.metrics(cluster, name)
        rows = show.usage_rows(pods, said, measured)
        if as_json:
            return rows
        return show.usage(now, said, rows, measured=measured is not None)

    if as_json:
        return show.as_json(look())
    if once or not sys.stdout.isatty():
        return Console().print(look())
    with Live(look(), auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(look(), refresh=True)


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
        _say(f"http://127.0.0.1:{opened} leads to TensorBoard in {pod}; interrupt to end")

    forward.forward(cluster, pod, remote=6006, local=port, ready=ready, failed=_say)


@app.command()
def delete(context: typer.Context, name: Name) -> None:
    """Delete a job and everything that was rendered with it; its volumes stay."""
    cluster = context.obj()
    for gone in jobs.delete(cluster, jobs.look(cluster, name)):
        _say(f"deleted {gone}")


@app.command("list")
def list_jobs(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the jobs of the namespace."""
    found = jobs.all_of(context.obj())
    if as_json:
        return show.as_json([show.row_of(job) for job in found])
    return show.listed(found)


@app.command()
def gc(
    context: typer.Context,
    *,
    older_than: Annotated[float, typer.Option(min=0, max=1e6, help="hours since the end")] = 24.0,
    dry_run: Annotated[bool, typer.Option(help="only say what would go")] = False,
) -> None:
    """Delete the jobs that ended, or were cancelled, long enough ago."""
    cluster = context.obj()
    moment = datetime.now(UTC) - timedelta(hours=older_than)
    for job in jobs.finished_before(jobs.all_of(cluster), moment):
        if dry_run:
            _say(f"would delete {job.name}, {job.state.phase} at {job.state.ended_at}")
            continue
        for gone in jobs.delete(cluster, job):
            _say(f"deleted {gone}")


@app.command("doctor")
def examine(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Say what the cluster can take: launchers, devices, storage, queues, quota, security."""
    found = [*doctor.examine(context.obj())]
    if as_json:
        return show.as_json([dataclasses.asdict(finding) for finding in found])
    return show.findings(found)


def main() -> int:
    """Run a verb and return the exit code."""
    try:
        command: Callable[..., Any] = typer.main.get_command(app)
        code = command(standalone_mode=False)
        sys.stdout.flush()
    except Fault as fault:
        _say(f"{fault} (exit {fault.code})")
        return fault.code
    except typer.Abort:
        return 130
    except BrokenPipeError:
        # Whoever read the output has enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except typer.TyperException as error:
        _say(f"{error.format_message()} (exit {Exit.CONFIG}); --help lists what there is")
        return Exit.CONFIG
    return code if isinstance(code, int) else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
