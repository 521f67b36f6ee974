"""How a TrainJob of Kubeflow Trainer says how it is."""

from k8s.plan.status import Kind, Object, Phase, State, condition, ended, label_number


def _read(job: Object) -> State:
    if found := condition(job, "Complete"):
        return ended(found, Phase.SUCCEEDED)
    if found := condition(job, "Failed"):
        return ended(found, Phase.FAILED)
    if job.get("spec", {}).get("suspend"):
        return State(Phase.SUSPENDED, "spec.suspend")
    parts = job.get("status", {}).get("jobsStatus") or []
    up = any(part.get("ready") or part.get("succeeded") for part in parts)
    return State(Phase.RUNNING if up else Phase.PENDING)


KIND = Kind(
    launcher="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    suspend=("spec", "suspend"),
    read=_read,
    node=label_number("batch.kubernetes.io/job-completion-index"),
    elastic=lambda _: None,  # Kubeflow Trainer knows one number of nodes (kubeflow/trainer 2903)
    scale=lambda _job, _nodes: [],
)
