"""What the launchers whose pods a PodGroup places together have in common."""

from k8s.jobfile.spec import JobSpec
from trainer.config.exits import Exit, Fault


def check_coscheduled(spec: JobSpec) -> list[str]:
    """Refuse a gang for a scheduler that does not read coscheduling's PodGroup; return warnings."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name == "volcano":
        raise Fault(
            Exit.CONFIG,
            "scheduling.schedulerName='volcano': has PodGroups of its own, and would place these pods "
            "one by one; use launcher volcano, or trainjob",
        )
    return warnings_of_a_gang(spec)


def warnings_of_a_gang(spec: JobSpec) -> list[str]:
    """Return what people should know whose pods are placed together by a PodGroup."""
    if spec.scheduling.gang and spec.scheduling.scheduler_name is None:
        return [
            "scheduling.gang: needs a scheduler that reads a PodGroup; set scheduling.schedulerName"
        ]
    return []
