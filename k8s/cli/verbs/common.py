"""Operate jobs of any launcher on a cluster.

python -m k8s submit build/digits-ddp/jobset.yaml --wait
python -m k8s status digits-ddp
"""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from k8s.cluster.client.api import Cluster
from k8s.cluster.client.connect import connect
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


@app.callback()
def _common(
    context: typer.Context,
    cluster: Annotated[str | None, typer.Option("--context", help="a kubeconfig context")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="default: that of the context")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=1e6, help="seconds that a request may take, including retries"),
    ] = 30.0,
) -> None:
    def connected() -> Cluster:
        found = connect(context=cluster, namespace=namespace, timeout=timeout)
        context.call_on_close(found.close)
        log.info(found.where)
        return found

    context.obj = connected


def log_state(of: str, state: State) -> None:
    restarts = f", {state.restarts} restarts" if state.restarts else ""
    log.info("%s%s%s%s%s", of, state.phase, restarts, ": " if state.reason else "", state.reason)


def print_line(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")  # at once: several threads may print
    sys.stdout.flush()
