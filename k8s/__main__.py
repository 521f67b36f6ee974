"""Operates jobs on a cluster, whatever launcher they were rendered for.

python -m k8s submit build/digits-ddp/jobset.yaml --wait
python -m k8s status digits-ddp
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from k8s.cluster import api, doctor, jobs, logs
from k8s.cluster.api import Cluster
from k8s.cluster.state import State
from trainer.exits import Exit, Fault

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="the job's name, as in its job file")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.callback()
def _common(
    context: typer.Context,
    cluster: Annotated[str | None, typer.Option("--context", help="a kubeconfig context")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="default: the context's own")
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds that a request may take")] = 30.0,
) -> None:
    def connect() -> Cluster:
        found = api.connect(context=cluster, namespace=namespace, timeout=timeout)
        _say(found.where)
        return found

    context.obj = connect


def _say(words: str) -> None:
    print(f"k8s: {words}", file=sys.stderr, flush=True)


def _tell(state: State) -> None:
    restarts = f", {state.restarts} restarts" if state.restarts else ""
    _say(f"{state.phase}{restarts}{': ' if state.reason else ''}{state.reason}")


@app.command()
def submit(
    context: typer.Context,
    manifest: Annotated[Path, typer.Argument(help="what render.py wrote; - reads standard input")],
    *,
    wait_: Annotated[bool, typer.Option("--wait", help="wait for the end; exit as it did")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="show the logs meanwhile")] = False,
    force: Annotated[bool, typer.Option(help="take fields over from other owners")] = False,
) -> None:
    """Apply a rendered job: on the server's side, after a dry run there."""
    manifests = _read(manifest)
    cluster = context.obj()
    name = jobs.submit(cluster, manifests, force=force)
    _say(f"submitted {name}")
    if follow:
        _follow(cluster, name, query={"follow": "true"}, nodes=None)
    if wait_ or follow:
        raise typer.Exit(jobs.wait(cluster, name, timeout=None, told=_tell))


def _read(manifest: Path) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if str(manifest) == "-" else manifest.read_text(encoding="utf-8")
        found = [document for document in yaml.safe_load_all(text) if document]
    except OSError as error:
        raise Fault(Exit.CONFIG, f"{manifest}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise Fault(Exit.CONFIG, f"{manifest}: not YAML: {' '.join(str(error).split())}") from None
    if not all(isinstance(document, dict) and "kind" in document for document in found):
        raise Fault(Exit.CONFIG, f"{manifest}: not a manifest; render.py makes one of a job file")
    return found


@app.command()
def status(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show how a job is: its state, its pods, how far it has come, and what went wrong."""
    cluster = context.obj()
    job = jobs.look(cluster, name)
    pods = jobs.pods(cluster, job)
    progress = jobs.progress(cluster, pods)
    warnings = jobs.events(cluster, job, pods)[-5:]
    if as_json:
        told = {
            "name": name,
            "launcher": job.kind.launcher,
            **dataclasses.asdict(job.state),
            "pods": [dataclasses.asdict(pod) for pod in pods],
            "progress": dataclasses.asdict(progress) if progress else None,
            "warnings": warnings,
        }
        print(json.dumps(told))
        return
    console = Console()
    console.print(
        f"[b]{name}[/b] ({job.kind.launcher}) is [b]{job.state.phase}[/b]", job.state.reason
    )
    if progress:
        left = timedelta(seconds=round(progress.seconds_left))
        console.print(
            f"step {progress.step} of {progress.steps}, loss {progress.loss:.4g}, "
            f"{progress.samples_per_s:.4g} samples/s, {left} left"
        )
    table = Table("node", "pod", "on", "phase", "restarts", "reason")
    for pod in pods:
        node = "" if pod.node is None else str(pod.node)
        table.add_row(node, pod.name, pod.host, pod.phase, str(pod.restarts), pod.reason)
    console.print(table)
    for warning in warnings:
        console.print(warning, style="yellow", markup=False)


@app.command("logs")
def show_logs(
    context: typer.Context,
    name: Name,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until the job ends")
    ] = False,
    node: Annotated[list[int] | None, typer.Option(help="only these nodes")] = None,
    since: Annotated[int | None, typer.Option(help="only the last so many seconds")] = None,
    previous: Annotated[
        bool, typer.Option(help="of the containers before the last restart")
    ] = False,
) -> None:
    """Show what every node says, each line with the node it comes from."""
    query: dict[str, object] = {}
    if follow:
        query["follow"] = "true"
    if previous:
        query["previous"] = "true"
    if since is not None:
        query["sinceSeconds"] = since
    _follow(context.obj(), name, query=query, nodes=node)


def _follow(
    cluster: Cluster, name: str, *, query: dict[str, object], nodes: list[int] | None
) -> None:
    following = logs.Following(cluster, query=query)
    try:
        while True:
            job = jobs.look(cluster, name)
            for pod in jobs.pods(cluster, job):
                if pod.phase != "Pending" and (nodes is None or pod.node in nodes):
                    following.add(pod)
            following.drain(print, seconds=1.0)
            if not following.reading and ("follow" not in query or job.state.phase.ended):
                following.drain(print, seconds=0.1)
                return
    finally:
        following.close()


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
    jobs.suspend(cluster, jobs.look(cluster, name), on=True)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Let a suspended job go on."""
    cluster = context.obj()
    jobs.suspend(cluster, jobs.look(cluster, name), on=False)


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
        rows = [
            {"name": job.name, "launcher": job.kind.launcher, **dataclasses.asdict(job.state)}
            for job in found
        ]
        print(json.dumps(rows))
        return
    table = Table("name", "launcher", "state", "restarts", "reason")
    for job in found:
        state = job.state
        table.add_row(job.name, job.kind.launcher, state.phase, str(state.restarts), state.reason)
    Console().print(table)


@app.command()
def gc(
    context: typer.Context,
    *,
    older_than: Annotated[float, typer.Option(help="hours since the end")] = 24.0,
    dry_run: Annotated[bool, typer.Option(help="only say what would go")] = False,
) -> None:
    """Delete the jobs that ended long enough ago."""
    cluster = context.obj()
    moment = datetime.now(UTC) - timedelta(hours=older_than)
    for job in jobs.finished_before(jobs.all_of(cluster), moment):
        if dry_run:
            _say(f"would delete {job.name}, which {job.state.phase} at {job.state.ended_at}")
            continue
        for gone in jobs.delete(cluster, job):
            _say(f"deleted {gone}")


@app.command("doctor")
def examine(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Say what the cluster can take: launchers, devices, storage, queues, quota, security."""
    findings = doctor.examine(context.obj())
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
        return
    marks = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    table = Table("", "about", "found")
    for finding in findings:
        table.add_row(marks[finding.good], finding.about, finding.words)
    Console().print(table)


def main() -> int:
    """Run a verb and return the exit code."""
    try:
        command: Callable[..., Any] = typer.main.get_command(app)
        code = command(standalone_mode=False)
    except Fault as fault:
        _say(f"{fault} (exit {fault.code})")
        return fault.code
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        _say(f"{error.format_message()} (exit {Exit.CONFIG}); --help lists what there is")
        return Exit.CONFIG
    return code if isinstance(code, int) else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
