"""The TrainJob of Kubeflow Trainer as the verbs see it."""

from k8s.plan.job_kind import JobKind, Object, Phase, State, label_number, stopped


def _read(job: Object) -> State:
    if state := stopped(job, succeeded=("Complete",)):
        return state
    parts = job.get("status", {}).get("jobsStatus") or []
    up = any(part.get("ready") or part.get("succeeded") for part in parts)
    return State(Phase.RUNNING if up else Phase.PENDING)


_RUNTIME = ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime")

# Not elastic: Kubeflow Trainer knows one number of nodes (kubeflow/trainer 2903).
JOB_KIND = JobKind(
    launcher="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    suspend_field=("spec", "suspend"),
    read=_read,
    node=label_number("batch.kubernetes.io/job-completion-index"),
    label_domains=("kubeflow.org",),
    requires=(_RUNTIME, ("jobset.x-k8s.io/v1alpha2", "JobSet")),
    companion_kinds=(_RUNTIME,),
    install={
        "trainer.kubeflow.org": "Kubeflow Trainer v2, https://www.kubeflow.org/docs/components/trainer/",
    },
)
