"""The PodGroup of scheduler-plugins, which places all pods of a job together: for job and jobset.

render.py job.yaml --set scheduling.gang=true --set scheduling.schedulerName=scheduler-plugins-scheduler
"""

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec

POD_GROUP = ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
SCHEDULER_PLUGINS = {
    "scheduling.x-k8s.io": "scheduler-plugins, https://scheduler-plugins.sigs.k8s.io"
}


def check_coscheduled(spec: JobSpec) -> list[str]:
    """Refuse a gang for a scheduler that does not read this PodGroup; return warnings."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name == "volcano":
        raise config_error(
            "scheduling.schedulerName='volcano': Volcano reads only its own PodGroups, so it would "
            "place these pods one by one; use launcher volcano or trainjob"
        )
    return gang_warnings(spec)


def gang_warnings(spec: JobSpec) -> list[str]:
    """Return warnings about pods that a PodGroup places together."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name is None:
        return [
            "scheduling.gang: needs a scheduler that reads a PodGroup; set scheduling.schedulerName"
        ]
    return []
