"""A TrainJob of Kubeflow Trainer, 2.3 or newer, with its own TrainingRuntime.

render.py job.yaml --launcher trainjob
"""

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from k8s.launchers.gang import gang_warnings
from k8s.launchers.jobset import LAUNCHER as JOBSET
from k8s.launchers.trainjob.job_kind import JOB_KIND
from k8s.launchers.trainjob.migrate import migrate
from k8s.plan.launcher import Launcher, RunsIn


def _check(spec: JobSpec) -> list[str]:
    timeout = spec.scheduling.gang_timeout
    if timeout is not None and spec.scheduling.scheduler_name == "volcano":
        raise config_error(
            f"scheduling.gangTimeout={timeout}: scheduler volcano has its own setting for this; "
            "leave it out"
        )
    return gang_warnings(spec)


LAUNCHER = Launcher(
    name="trainjob",
    summary="trainer.kubeflow.org/v1alpha1 TrainJob and TrainingRuntime",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    migrate=migrate,
    check=_check,
    restarts=JOBSET.restarts,
    host=JOBSET.host,
    master=JOBSET.master,
    pod_suffix=JOBSET.pod_suffix,
    lacks={
        "nodes.min": "Kubeflow Trainer supports only a fixed number of nodes (kubeflow/trainer 2903); "
        "use launcher jobset, job, pytorchjob or volcano",
        "appWrapper": "an AppWrapper cannot find the pods of a TrainJob; use launcher jobset",
        "faults.cleanPodPolicy": "its JobSet keeps the pods of the last attempt; leave it out",
        "faults.ttl": "a TrainJob has no ttl, and makes its JobSet again whenever the JobSet's ttl "
        "deletes it (kubeflow/trainer 2991); leave it out",
    },
)
