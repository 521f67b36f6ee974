"""This machine, without an image: all ranks of all nodes under one agent."""

from k8s.launchers import LACKED_BY_A_MACHINE, Launcher, RunsIn, warnings_of_a_machine
from k8s.plan import Plan


def _restarts(_: Plan) -> str:
    return "none; run it again and it resumes"


LAUNCHER = Launcher(
    name="local",
    summary="processes on this machine",
    runs_in=RunsIn.PROCESS,
    check=warnings_of_a_machine,
    restarts=_restarts,
    host=lambda _name, _node: "localhost",
    master=lambda _name: "localhost",
    lacks=LACKED_BY_A_MACHINE,
)
