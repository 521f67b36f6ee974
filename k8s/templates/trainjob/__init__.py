"""A TrainJob of Kubeflow Trainer, 2.3 or newer, with a TrainingRuntime of its own.

render.py job.yaml --launcher trainjob
"""

from k8s.launchers import Launcher, RunsIn, codes, warnings_of_a_gang
from k8s.plan import Plan
from k8s.spec import JobSpec
from trainer.exits import Action, Exit, Fault


def _host(name: str, node: int) -> str:
    return f"{name}-node-0-{node}"


def _master(name: str) -> str:
    return f"{name}-node-0-0.{name}"


def _restarts(plan: Plan) -> str:
    return (
        f"exit {codes(Action.FAIL)} fails the job at once; exit {codes(Action.RETRY_FREE)} and "
        f"evictions restart all pods, uncounted; other failures do too, {plan.max_restarts} at most"
    )


def _check(spec: JobSpec) -> list[str]:
    timeout = spec.scheduling.gang_timeout
    if timeout is not None and spec.scheduling.scheduler_name == "volcano":
        raise Fault(
            Exit.CONFIG,
            f"scheduling.gangTimeout={timeout}: scheduler volcano waits as its own configuration says; "
            "leave it out",
        )
    return warnings_of_a_gang(spec)


LAUNCHER = Launcher(
    name="trainjob",
    summary="trainer.kubeflow.org/v1alpha1 TrainJob and TrainingRuntime",
    runs_in=RunsIn.POD,
    check=_check,
    restarts=_restarts,
    host=_host,
    master=_master,
    pod_suffix="-xxxxx",
    lacks={
        "nodes.min": "Kubeflow Trainer knows one number of nodes (kubeflow/trainer 2903); use launcher "
        "jobset, job, pytorchjob or volcano",
        "appWrapper": "an AppWrapper does not know the pods of a TrainJob; use launcher jobset",
        "faults.cleanPodPolicy": "its JobSet keeps the pods of the last attempt; leave it out",
        "faults.ttl": "a TrainJob has none, and makes a JobSet that is deleted by its own anew for ever "
        "(kubeflow/trainer 2991); leave it out",
    },
)
