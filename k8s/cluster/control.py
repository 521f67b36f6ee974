"""Suspend, resume, cancel and scale a job.

suspend(cluster, get_job(cluster, "digits"))
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from k8s.base.errors import config_error
from k8s.cluster import wrapped_job
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Object, Refused
from k8s.cluster.client.objects import NotServed
from k8s.cluster.jobs import Job
from k8s.cluster.state import CANCELLED, QUEUE
from k8s.plan.job_kind import Phase
from trainer.config.exits import Exit, Fault

KUEUE_VERSIONS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")


def suspend(cluster: Cluster, job: Job) -> None:
    """Stop a job's pods, which save a checkpoint first. Raises Fault(64) for a job that has ended."""
    _check_not_ended(job, "suspend")
    _set_suspended(cluster, job, suspend=True)


def resume(cluster: Cluster, job: Job) -> None:
    """Continue a suspended or cancelled job. Raises Fault(64) for a job that has ended."""
    if job.state.phase is not Phase.CANCELLED:
        _check_not_ended(job, "resume")
    _annotate(cluster, job, None)
    _set_suspended(cluster, job, suspend=False)


def cancel(cluster: Cluster, job: Job) -> None:
    """Stop a job for good, but keep its objects. Its pods get SIGTERM and save a checkpoint.

    Controllers cannot cancel, but all can suspend: an annotation marks the suspended job as ended.
    Raises Fault(64) for a job that has ended.
    """
    _check_not_ended(job, "cancel")
    # Stopped first: the mark would show a job that could not be stopped as ended.
    _set_suspended(cluster, job, suspend=True)
    _annotate(cluster, job, datetime.now(UTC).isoformat(timespec="seconds"))


def _check_not_ended(job: Job, verb: str) -> None:
    if job.state.phase.ended:
        raise config_error(f"job {job.name} has ended ({job.state.phase}); cannot {verb} it")


def _annotate(cluster: Cluster, job: Job, cancelled_at: str | None) -> None:
    root = job.root_object
    if (root["metadata"].get("annotations") or {}).get(CANCELLED) != cancelled_at:
        objects.patch(cluster, root, {"metadata": {"annotations": {CANCELLED: cancelled_at}}})


def _set_suspended(cluster: Cluster, job: Job, *, suspend: bool) -> None:
    if QUEUE in (job.root_object["metadata"].get("labels") or {}):
        _set_workload_active(cluster, job, active=not suspend)
    elif job.kind.suspend_command is not None:
        objects.apply(cluster, job.kind.suspend_command(job.manifest, suspend))
    else:
        field = job.kind.suspend_field if job.wrapper is None else wrapped_job.SUSPEND_FIELD
        change: Any = suspend
        for key in reversed(field):
            change = {key: change}
        objects.patch(cluster, job.root_object, change)


def _set_workload_active(cluster: Cluster, job: Job, *, active: bool) -> None:
    """Stop or continue a queued job through its Workload.

    Kueue would resume an admitted job that is suspended by its own field.
    """
    labels = {"kueue.x-k8s.io/job-uid": job.root_object["metadata"]["uid"]}
    for version in KUEUE_VERSIONS:
        try:
            found = objects.find(cluster, version, "Workload", labels)
        except NotServed:
            continue
        for workload in found:
            objects.patch(cluster, workload, {"spec": {"active": active}})
        if not found:
            raise Fault(
                Exit.PEER, f"job {job.name}: Kueue has not made its Workload yet; try again"
            )
        return
    raise config_error(f"job {job.name} is for a Kueue queue, but Kueue is not installed here")


def scale(cluster: Cluster, job: Job, nodes: int) -> None:
    """Change the number of nodes of an elastic job.

    Raises Fault(64) if the job has a fixed size or has ended, or if the number is out of its bounds.
    """
    _check_not_ended(job, "scale")
    bounds = job.kind.elastic(job.manifest)
    if bounds is None:
        raise config_error(
            f"job {job.name} ({job.kind.launcher}) has a fixed size; nodes: {{min, max}} in the "
            "job file makes it elastic"
        )
    least, most = bounds
    if not least <= nodes <= most:
        raise config_error(f"job {job.name} takes {least} to {most} nodes, not {nodes}")

    def replacing(paths: Iterable[str]) -> list[Object]:
        return [{"op": "replace", "path": path, "value": nodes} for path in paths]

    try:
        objects.patch(cluster, job.manifest, replacing(job.kind.node_counts))
    except Refused:
        if job.kind.made_job is None:
            raise
        named = {"metadata": {"name": job.kind.made_job(job.manifest)}}
        made = {"apiVersion": "batch/v1", "kind": "Job", **named}
        objects.patch(cluster, made, replacing(("/spec/completions", "/spec/parallelism")))
