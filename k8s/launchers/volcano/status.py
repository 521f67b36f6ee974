"""How a job of Volcano says how it is."""

from k8s.plan.status import Change, Kind, Object, Phase, State, label_number, nodes_in

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
    words = ": ".join(filter(None, (state.get("reason"), state.get("message"))))
    at = state.get("lastTransitionTime") if phase.ended else None
    return State(phase, words, retries, at)


def _elastic(job: Object) -> tuple[int, int] | None:
    tasks = job["spec"].get("tasks") or [{}]
    return nodes_in(tasks[0].get("template", {}))


def _scale(job: Object, nodes: int) -> list[Change]:
    operations = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": nodes}]
    return [Change(KIND.api_version, "Job", job["metadata"]["name"], operations)]


KIND = Kind(
    launcher="volcano",
    api_version="batch.volcano.sh/v1alpha1",
    kind="Job",
    suspend=(),
    read=_read,
    node=label_number("volcano.sh/task-index"),
    elastic=_elastic,
    scale=_scale,
)
