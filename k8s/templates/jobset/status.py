"""How a JobSet says how it is."""

from k8s.cluster.state import Kind, Object, Phase, State, condition, ended, label_number


def _read(job: Object) -> State:
    status = job.get("status", {})
    restarts = status.get("restarts", 0)
    if found := condition(job, "Completed"):
        return ended(found, Phase.SUCCEEDED, restarts)
    if found := condition(job, "Failed"):
        return ended(found, Phase.FAILED, restarts)
    if job.get("spec", {}).get("suspend"):
        return State(Phase.SUSPENDED, "spec.suspend", restarts)
    parts = status.get("replicatedJobsStatus") or []
    if any(part.get("ready", 0) for part in parts):
        return State(Phase.RUNNING, restarts=restarts)
    return State(Phase.RESTARTING if restarts else Phase.PENDING, restarts=restarts)


KIND = Kind(
    launcher="jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    suspend=("spec", "suspend"),
    read=_read,
    node=label_number("batch.kubernetes.io/job-completion-index"),
)
