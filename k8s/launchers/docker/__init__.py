"""This machine, in the image: all ranks of all nodes in one container."""

from k8s.jobfile.spec import JobSpec
from k8s.launchers.machine import (
    LACKED_BY_A_MACHINE,
    not_restarted,
    refuse_for_docker,
    warnings_of_a_machine,
)
from k8s.plan.launcher import Launcher, RunsIn


def _check(spec: JobSpec) -> list[str]:
    refuse_for_docker(spec)
    return warnings_of_a_machine(spec)


LAUNCHER = Launcher(
    name="docker",
    summary="one container on this machine",
    runs_in=RunsIn.CONTAINER,
    check=_check,
    restarts=not_restarted,
    host=lambda _spec, _node: "localhost",
    master=lambda _spec: "localhost",
    lacks=LACKED_BY_A_MACHINE,
)
