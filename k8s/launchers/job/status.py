"""How an Indexed Job of batch/v1 says how it is."""

from k8s.plan.status import (
    Change,
    Kind,
    Object,
    Phase,
    State,
    condition,
    ended,
    label_number,
    nodes_in,
)


def _read(job: Object) -> State:
    status = job.get("status", {})
    failed = status.get("failed", 0)
    if found := condition(job, "Complete", "SuccessCriteriaMet"):
        return ended(found, Phase.SUCCEEDED, failed)
    if found := condition(job, "Failed", "FailureTarget"):
        return ended(found, Phase.FAILED, failed)
    if job.get("spec", {}).get("suspend"):
        return State(Phase.SUSPENDED, "spec.suspend", failed)
    # pods that are done make the job succeed a moment later
    if status.get("ready") or (status.get("succeeded") and not status.get("active")):
        return State(Phase.RUNNING, restarts=failed)
    again = failed or status.get("terminating")  # a pod that was evicted is not counted as failed
    return State(Phase.RESTARTING if again else Phase.PENDING, restarts=failed)


def _elastic(job: Object) -> tuple[int, int] | None:
    return nodes_in(job["spec"].get("template", {}))


def _scale(job: Object, nodes: int) -> list[Change]:
    # both together: then the pods of the highest indices go, and never node 0 alone
    operations = [
        {"op": "replace", "path": f"/spec/{field}", "value": nodes}
        for field in ("completions", "parallelism")
    ]
    return [Change("batch/v1", "Job", job["metadata"]["name"], operations)]


KIND = Kind(
    launcher="job",
    api_version="batch/v1",
    kind="Job",
    suspend=("spec", "suspend"),
    read=_read,
    node=label_number("batch.kubernetes.io/job-completion-index"),
    elastic=_elastic,
    scale=_scale,
)
