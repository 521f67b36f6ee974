"""What is done to a job that runs: suspended, resumed, cancelled, made larger or smaller.

suspend(cluster, look(cluster, "digits"), on=True)
"""

from datetime import UTC, datetime
from typing import Any

from k8s.cluster import wrapped
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Object, Refused
from k8s.cluster.client.objects import NotServed
from k8s.cluster.jobs import Job
from k8s.cluster.state import CANCELLED, QUEUE
from k8s.plan.status import Phase
from trainer.config.exits import Exit, Fault

WORKLOADS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
COMMAND = ("bus.volcano.sh/v1alpha1", "Command")


def suspend(cluster: Cluster, job: Job, *, on: bool) -> None:
    """Suspend a job, or let it go on; its pods end with a checkpoint, and come back to it.

    Raises Fault(64) for a job that has ended; one that was cancelled may go on.
    """
    if job.state.phase.ended and (on or job.state.phase is not Phase.CANCELLED):
        raise Fault(Exit.CONFIG, f"job {job.name} has {job.state.phase}: too late")
    _mark(cluster, job, None)
    _stop(cluster, job, on=on)


def cancel(cluster: Cluster, job: Job) -> None:
    """Stop a job for good, and keep its objects: its pods get SIGTERM and save a checkpoint.

    A controller has no word for this, but all can suspend; that it was meant for good is noted on the
    job, so that it counts as ended. Raises Fault(64) for a job that has ended.
    """
    if job.state.phase.ended:
        raise Fault(Exit.CONFIG, f"job {job.name} has {job.state.phase}: too late")
    _mark(cluster, job, datetime.now(UTC).isoformat(timespec="seconds"))
    _stop(cluster, job, on=True)


def _mark(cluster: Cluster, job: Job, at: str | None) -> None:
    before = (job.held["metadata"].get("annotations") or {}).get(CANCELLED)
    if before != at:
        objects.patch(cluster, job.held, {"metadata": {"annotations": {CANCELLED: at}}})


def _stop(cluster: Cluster, job: Job, *, on: bool) -> None:
    path = job.kind.suspend if job.wrapper is None else wrapped.SUSPEND
    if QUEUE in (job.held["metadata"].get("labels") or {}):
        _tell_kueue(cluster, job, active=not on)
    elif path:
        change: Any = on
        for part in reversed(path):
            change = {part: change}
        objects.patch(cluster, job.held, change)
    else:
        _tell_volcano(cluster, job, "AbortJob" if on else "ResumeJob")


def _tell_kueue(cluster: Cluster, job: Job, *, active: bool) -> None:
    """Stop a queued job by its Workload: Kueue itself would at once resume one that it has admitted."""
    labels = {"kueue.x-k8s.io/job-uid": job.held["metadata"]["uid"]}
    for version in WORKLOADS:
        try:
            found = objects.find(cluster, version, "Workload", labels)
        except NotServed:
            continue
        for workload in found:
            named = {"apiVersion": version, "kind": "Workload", **workload}
            objects.patch(cluster, named, {"spec": {"active": active}})
        if not found:
            raise Fault(
                Exit.PEER, f"job {job.name}: Kueue has made no Workload for it yet; try again"
            )
        return
    raise Fault(Exit.CONFIG, f"job {job.name} is for a queue of Kueue's, which is not served here")


def _tell_volcano(cluster: Cluster, job: Job, action: str) -> None:
    """Make the object that Volcano's own command line makes; its controller deletes it when done.

    It counts every resume against the job's restarts (volcano-sh/volcano 3067).
    """
    api_version, kind = COMMAND
    owner = {
        "apiVersion": job.kind.api_version,
        "kind": job.kind.kind,
        "name": job.name,
        "uid": job.found["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    command: Object = {
        "apiVersion": api_version,
        "kind": kind,
        # a name of its own, so that a request made twice is one
        "metadata": {"name": f"{job.name}-{action.lower()}", "ownerReferences": [owner]},
        "target": owner,
        "action": action,
    }
    objects.apply(cluster, command)


def scale(cluster: Cluster, job: Job, nodes: int) -> None:
    """Give an elastic job another number of nodes.

    Raises Fault(64) for a job of fixed size, one that has ended, and a number out of its bounds.
    """
    if job.state.phase.ended:
        raise Fault(Exit.CONFIG, f"job {job.name} has {job.state.phase}: too late")
    bounds = job.kind.elastic(job.found)
    if bounds is None:
        raise Fault(
            Exit.CONFIG,
            f"job {job.name} ({job.kind.launcher}) is of fixed size; nodes: {{min, max}} in the job "
            "file makes an elastic one",
        )
    least, most = bounds
    if not least <= nodes <= most:
        raise Fault(Exit.CONFIG, f"job {job.name} takes {least} to {most} nodes, not {nodes}")
    refusals: list[Fault] = []
    for change in job.kind.scale(job.found, nodes):
        named = {"apiVersion": change.api_version, "kind": change.kind}
        try:
            objects.patch(cluster, {**named, "metadata": {"name": change.name}}, change.operations)
        except Refused as refusal:
            refusals.append(refusal)
        else:
            return
    raise refusals[-1]
