"""The JobSet as the verbs see it."""

from k8s.launchers.gang import POD_GROUP, SCHEDULER_PLUGINS
from k8s.plan.job_kind import (
    JobKind,
    Object,
    Phase,
    State,
    condition,
    label_number,
    nodes_in,
    stopped,
)


def _read(job: Object) -> State:
    status = job.get("status", {})
    restarts = status.get("restarts", 0)
    if state := stopped(job, restarts, succeeded=("Completed",)):
        return state
    if found := condition(job, "RestartingJobSet"):
        return State(Phase.RESTARTING, found.get("message", ""), restarts)
    parts = status.get("replicatedJobsStatus") or []
    if any(part.get("ready") or part.get("succeeded") for part in parts):
        return State(Phase.RUNNING, restarts=restarts)
    waiting = "its Jobs are suspended" if any(part.get("suspended") for part in parts) else ""
    return State(Phase.RESTARTING if restarts else Phase.PENDING, waiting, restarts)


def _elastic(job: Object) -> tuple[int, int] | None:
    parts = job["spec"].get("replicatedJobs") or [{}]
    return nodes_in(parts[0].get("template", {}).get("spec", {}).get("template", {}))


def _made_job(job: Object) -> str:
    return f"{job['metadata']['name']}-{job['spec']['replicatedJobs'][0]['name']}-0"


JOB_KIND = JobKind(
    launcher="jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    suspend_field=("spec", "suspend"),
    read=_read,
    label_domains=("jobset.sigs.k8s.io",),
    companion_kinds=(POD_GROUP,),
    # `scale`, where the controller does not let the JobSet itself change
    rights=(("batch/v1", "Job", ("patch",), ("{}-node-0",)),),
    install={
        "jobset.x-k8s.io": "JobSet, https://jobset.sigs.k8s.io/docs/installation/",
        **SCHEDULER_PLUGINS,
    },
    node=label_number("batch.kubernetes.io/job-completion-index"),
    elastic=_elastic,
    node_counts=(
        "/spec/replicatedJobs/0/template/spec/completions",
        "/spec/replicatedJobs/0/template/spec/parallelism",
    ),
    made_job=_made_job,  # for a controller that does not let the JobSet change (jobset 1179)
)
