"""A Volcano Job: all pods are scheduled together or none.

render.py job.yaml --launcher volcano
"""

from k8s.launchers.volcano.job_kind import JOB_KIND
from k8s.plan.launcher import Launcher, RunsIn, codes
from k8s.plan.model import Plan
from trainer.config.exits import Action


def _restarts(plan: Plan) -> str:
    return (
        f"exit {codes(Action.FAIL)} ends the job at once; any other failure and evictions restart all "
        f"pods, at most {plan.lifetime.max_restarts} times: the controller counts every restart"
    )


LAUNCHER = Launcher(
    name="volcano",
    summary="batch.volcano.sh/v1alpha1 Job",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    check=lambda _spec: [],
    restarts=_restarts,
    host=lambda spec, node: f"{spec.name}-node-{node}",
    master=lambda spec: f"{spec.name}-node-0.{spec.name}",
    lacks={
        "appWrapper": "an AppWrapper is for Kueue, but Volcano queues this job; leave it out",
        "faults.cleanPodPolicy": "a Volcano Job stops the pods that still run; leave it out",
        "faults.deadline": "a Volcano Job has no deadline, and restarts a pod that reaches its own "
        "deadline; leave it out",
        "faults.suspend": "a Volcano Job cannot be created suspended; suspend it later with "
        "`python -m k8s suspend`, or use another launcher",
        "scheduling.gangTimeout": "Volcano has its own setting for this; leave it out",
        "scheduling.priority": "it is for Kueue, not Volcano's queue; set scheduling.priorityClass",
        "scheduling.topology": "it is for Kueue, not Volcano's queue; set scheduling.pack",
        "scheduling.exclusiveTopology": "only a JobSet has it; leave it out, or use launcher jobset",
    },
)
