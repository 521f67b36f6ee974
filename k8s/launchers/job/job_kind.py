"""The Indexed Job of batch/v1 as the verbs see it."""

from k8s.launchers.gang import POD_GROUP, SCHEDULER_PLUGINS
from k8s.plan.job_kind import JobKind, Object, Phase, State, label_number, nodes_in, stopped


def _read(job: Object) -> State:
    status = job.get("status", {})
    failed = status.get("failed", 0)
    succeeds, fails = ("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")
    if state := stopped(job, failed, succeeded=succeeds, failed=fails):
        return state
    # pods that are done make the job succeed a moment later
    if status.get("ready") or (status.get("succeeded") and not status.get("active")):
        return State(Phase.RUNNING, restarts=failed)
    again = failed or status.get("terminating")  # a pod that was evicted is not counted as failed
    return State(Phase.RESTARTING if again else Phase.PENDING, restarts=failed)


JOB_KIND = JobKind(
    launcher="job",
    api_version="batch/v1",
    kind="Job",
    suspend_field=("spec", "suspend"),
    read=_read,
    companion_kinds=(POD_GROUP,),
    install=SCHEDULER_PLUGINS,
    node=label_number("batch.kubernetes.io/job-completion-index"),
    elastic=lambda job: nodes_in(job["spec"].get("template", {})),
    # both together: then the pods of the highest indices go, and never node 0 alone
    node_counts=("/spec/completions", "/spec/parallelism"),
)
