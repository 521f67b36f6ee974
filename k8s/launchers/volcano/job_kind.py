"""The Volcano Job as the verbs see it."""

from k8s.plan.job_kind import (
    JobKind,
    Object,
    Phase,
    State,
    label_number,
    nodes_in,
    reason_and_message,
)

_PHASES = {
    "Pending": Phase.PENDING,
    "Running": Phase.RUNNING,
    "Completing": Phase.RUNNING,
    "Restarting": Phase.RESTARTING,
    "Completed": Phase.SUCCEEDED,
    "Failed": Phase.FAILED,
    "Terminating": Phase.FAILED,
    "Terminated": Phase.FAILED,
    "Aborting": Phase.SUSPENDED,
    "Aborted": Phase.SUSPENDED,
}


def _read(job: Object) -> State:
    status = job.get("status", {})
    state = status.get("state", {})
    phase, retries = _PHASES.get(state.get("phase", ""), Phase.PENDING), status.get("retryCount", 0)
    waits = status.get("pending") and not (status.get("running") or status.get("succeeded"))
    if phase is Phase.RUNNING and waits:  # Volcano calls it so all the same (volcano 2684, 1169)
        phase = Phase.PENDING
    if phase is Phase.PENDING and retries:
        phase = Phase.RESTARTING
    at = state.get("lastTransitionTime") if phase.ended else None
    return State(phase, reason_and_message(state), retries, at)


def _elastic(job: Object) -> tuple[int, int] | None:
    tasks = job["spec"].get("tasks") or [{}]
    return nodes_in(tasks[0].get("template", {}))


_COMMAND = ("bus.volcano.sh/v1alpha1", "Command")


def _command(job: Object, suspend: bool) -> Object:  # noqa: FBT001  # as JobKind calls it
    """Return the object that Volcano's own command line makes; its controller deletes it when done.

    It counts every resume as a restart of the job (volcano-sh/volcano 3067).
    """
    name, action = job["metadata"]["name"], "AbortJob" if suspend else "ResumeJob"
    target = {key: job[key] for key in ("apiVersion", "kind")}
    target |= {"name": name, "uid": job["metadata"]["uid"]}
    target |= {"controller": True, "blockOwnerDeletion": True}
    # One name for each action, so that a repeated request changes nothing.
    metadata = {"name": f"{name}-{action.lower()}", "ownerReferences": [target]}
    api_version, kind = _COMMAND
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "target": target,
        "action": action,
    }


JOB_KIND = JobKind(
    launcher="volcano",
    api_version="batch.volcano.sh/v1alpha1",
    kind="Job",
    suspend_command=_command,
    requires=(_COMMAND,),
    rights=((*_COMMAND, ("create", "patch"), ("{}-abortjob", "{}-resumejob")),),
    label_domains=("volcano.sh",),
    install=dict.fromkeys(
        ("batch.volcano.sh", "bus.volcano.sh"),
        "Volcano, https://volcano.sh/en/docs/installation/",
    ),
    read=_read,
    node=label_number("volcano.sh/task-index"),
    elastic=_elastic,
    node_counts=("/spec/tasks/0/replicas",),
)
