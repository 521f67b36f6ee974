"""How an Indexed Job of batch/v1 says how it is."""

from k8s.cluster.state import Kind, Object, Phase, State, condition, ended, label_number


def _read(job: Object) -> State:
    status = job.get("status", {})
    failed = status.get("failed", 0)
    if found := condition(job, "Complete", "SuccessCriteriaMet"):
        return ended(found, Phase.SUCCEEDED, failed)
    if found := condition(job, "Failed", "FailureTarget"):
        return ended(found, Phase.FAILED, failed)
    if job.get("spec", {}).get("suspend"):
        return State(Phase.SUSPENDED, "spec.suspend", failed)
    if status.get("ready"):
        return State(Phase.RUNNING, restarts=failed)
    return State(Phase.RESTARTING if failed else Phase.PENDING, restarts=failed)


KIND = Kind(
    launcher="job",
    api_version="batch/v1",
    kind="Job",
    suspend=("spec", "suspend"),
    read=_read,
    node=label_number("batch.kubernetes.io/job-completion-index"),
)
