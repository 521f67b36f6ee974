"""This machine, without an image: all ranks of all nodes under one launcher."""

from k8s.launchers.machine import LACKED_BY_A_MACHINE, not_restarted, warnings_of_a_machine
from k8s.plan.launcher import Launcher, RunsIn

LAUNCHER = Launcher(
    name="local",
    summary="processes on this machine",
    runs_in=RunsIn.PROCESS,
    check=warnings_of_a_machine,
    restarts=not_restarted,
    host=lambda _spec, _node: "localhost",
    master=lambda _spec: "localhost",
    lacks=LACKED_BY_A_MACHINE,
)
