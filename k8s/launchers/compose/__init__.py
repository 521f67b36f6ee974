"""Several nodes on this machine: one container per node, in their own network, as a compose file.

render.py job.yaml --launcher compose -o build
MUSTER_USER=$(id -u):$(id -g) docker compose -f build/compose.yaml up --abort-on-container-failure
"""

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from k8s.launchers.machine import (
    LACKED_BY_A_MACHINE,
    not_restarted,
    refuse_for_docker,
    warnings_of_a_machine,
)
from k8s.plan.launcher import Launcher, RunsIn

_MOST = 64


def _check(spec: JobSpec) -> list[str]:
    refuse_for_docker(spec)
    if spec.most_nodes > _MOST:
        raise config_error(
            f"nodes={spec.most_nodes}: launcher compose starts one container per node on this machine, "
            f"at most {_MOST}; use launcher docker, or a cluster"
        )
    return [one for one in warnings_of_a_machine(spec) if not one.startswith("nodes:")]


LAUNCHER = Launcher(
    name="compose",
    summary="a container for every node on this machine",
    runs_in=RunsIn.CONTAINERS,
    check=_check,
    restarts=not_restarted,
    host=lambda _spec, node: f"node-{node}",
    master=lambda _spec: "node-0",
    lacks=LACKED_BY_A_MACHINE,
)
