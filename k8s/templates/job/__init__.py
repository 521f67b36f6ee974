"""An Indexed Job: what any cluster has, without a controller of its own."""

from k8s.launchers import Launcher, RunsIn
from k8s.plan import Plan
from k8s.spec import JobSpec
from trainer.exits import Action, codes_for


def _host(name: str, node: int) -> str:
    return f"{name}-{node}"


def _master(name: str) -> str:
    return f"{name}-0.{name}"


def _check(_: JobSpec) -> list[str]:
    return []


def _restarts(plan: Plan) -> str:
    return (
        f"exit {_codes(Action.FAIL)} fails the job at once; exit {_codes(Action.RETRY_FREE)} and "
        f"evictions replace the pod, uncounted; other failures replace it, {plan.max_restarts} at most"
    )


def _codes(action: Action) -> str:
    return ", ".join(map(str, codes_for(action)))


LAUNCHER = Launcher(
    name="job",
    summary="batch/v1 Indexed Job and a headless Service",
    runs_in=RunsIn.POD,
    check=_check,
    restarts=_restarts,
    host=_host,
    master=_master,
)
