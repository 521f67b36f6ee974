"""An Indexed Job: what any cluster has, without a controller of its own."""

from k8s.launchers.gang import check_coscheduled
from k8s.launchers.job.job_kind import JOB_KIND
from k8s.launchers.job.migrate import migrate
from k8s.plan.launcher import Launcher, RunsIn, codes
from k8s.plan.model import Plan
from trainer.config.exits import Action


def _restarts(plan: Plan) -> str:
    return (
        f"exit {codes(Action.FAIL)} fails the job at once; exit "
        f"{codes(Action.RETRY_FREE, Action.RETRY_PEER)} and "
        f"evictions replace the pod and are not counted; other failures replace it at most "
        f"{plan.lifetime.max_restarts} times; "
        "the first replacement waits 10 s, each further one twice as long (jobset does not wait)"
    )


LAUNCHER = Launcher(
    name="job",
    summary="batch/v1 Indexed Job and a headless Service",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    migrate=migrate,
    check=check_coscheduled,
    restarts=_restarts,
    host=lambda spec, node: f"{spec.name}-{node}",
    master=lambda spec: f"{spec.name}-0.{spec.name}",
    pod_sets=lambda plan: [("spec.template", plan.size.nodes)],
    lacks={
        "faults.cleanPodPolicy": "a Job keeps the pods that ended, and stops the others; leave it out",
        "scheduling.exclusiveTopology": "only a JobSet has it; leave it out, or use launcher jobset",
    },
)
