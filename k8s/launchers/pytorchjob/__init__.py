"""A PyTorchJob of Kubeflow's training operator, 1.8 or newer.

1.7 does not tell the pods of an elastic job how many ranks they have (kubeflow/trainer 1948).
"""

from k8s.jobfile.spec import JobSpec
from k8s.launchers.pytorchjob.job_kind import JOB_KIND
from k8s.launchers.pytorchjob.migrate import migrate
from k8s.plan.launcher import Launcher, RunsIn, codes
from k8s.plan.model import Plan
from trainer.config.exits import Action


def _host(spec: JobSpec, node: int) -> str:
    if not isinstance(spec.nodes, int):  # elastic: only workers
        return f"{spec.name}-worker-{node}"
    return f"{spec.name}-worker-{node - 1}" if node else f"{spec.name}-master-0"


def _check(spec: JobSpec) -> list[str]:
    warnings = []
    if spec.faults.deadline is None and spec.faults.max_restarts:
        warnings.append(
            "faults.maxRestarts: the controller does not count every restart; set faults.deadline too"
        )
    if spec.most_nodes > 1:
        warnings.append(
            "pytorchjob: the init container that the controller adds to workers has no "
            "securityContext, so a namespace with Pod Security restricted refuses the workers"
        )
    if spec.scheduling.gang:
        warnings.append(
            "scheduling.gang: the operator obeys it only if started with --gang-scheduler-name"
        )
    return warnings


def _restarts(plan: Plan) -> str:
    if not plan.lifetime.max_restarts:
        return "any failure fails the job"
    return (
        f"exit {codes(Action.FAIL)} fails the job; any other failure replaces the pod; the other nodes "
        "then end, and their pods are replaced too"
    )


def _pod_sets(plan: Plan) -> list[tuple[str, int]]:
    worker = "spec.pytorchReplicaSpecs.Worker.template"
    if plan.size.elastic:
        return [(worker, plan.size.nodes)]
    workers = [(worker, plan.size.nodes - 1)] if plan.size.nodes > 1 else []
    return [("spec.pytorchReplicaSpecs.Master.template", 1), *workers]


LAUNCHER = Launcher(
    name="pytorchjob",
    summary="kubeflow.org/v1 PyTorchJob",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    check=_check,
    restarts=_restarts,
    host=_host,
    master=lambda spec: _host(spec, 0),
    pod_sets=_pod_sets,
    migrate=migrate,
    lacks={
        "scheduling.exclusiveTopology": "only a JobSet has it; leave it out, or use launcher jobset"
    },
)
