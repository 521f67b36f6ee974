"""A JobSet, 0.10 or newer: after any failure all pods restart together.

render.py job.yaml --launcher jobset
"""

from k8s.jobfile.spec import JobSpec
from k8s.launchers.gang import check_coscheduled
from k8s.launchers.jobset.job_kind import JOB_KIND
from k8s.launchers.jobset.migrate import migrate
from k8s.plan.launcher import Launcher, RunsIn, codes
from k8s.plan.model import Plan
from trainer.config.exits import Action


def _check(spec: JobSpec) -> list[str]:
    warnings = check_coscheduled(spec)
    if spec.faults.deadline is not None:
        warnings.append(
            "faults.deadline: a JobSet has no deadline, so each attempt gets the full time"
        )
    return warnings


def _restarts(plan: Plan) -> str:
    return (
        f"exit {codes(Action.FAIL)} fails the job at once; exit {codes(Action.RETRY_FREE)} and "
        "evictions restart all pods and are not counted; other failures restart all pods at most "
        f"{plan.lifetime.max_restarts} times"
    )


LAUNCHER = Launcher(
    name="jobset",
    summary="jobset.x-k8s.io/v1alpha2 JobSet",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    migrate=migrate,
    check=_check,
    restarts=_restarts,
    host=lambda spec, node: f"{spec.name}-node-0-{node}",
    master=lambda spec: f"{spec.name}-node-0-0.{spec.name}",
    pod_suffix="-xxxxx",
    pod_sets=lambda plan: [("spec.replicatedJobs[0].template.spec.template", plan.size.nodes)],
    lacks={"faults.cleanPodPolicy": "a JobSet keeps the pods of the last attempt; leave it out"},
)
