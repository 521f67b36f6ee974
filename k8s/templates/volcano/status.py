"""How a job of Volcano says how it is."""

from k8s.cluster.state import Kind, Object, Phase, State, label_number

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
    phase = _PHASES.get(state.get("phase", ""), Phase.PENDING)
    words = ": ".join(filter(None, (state.get("reason"), state.get("message"))))
    at = state.get("lastTransitionTime") if phase.ended else None
    return State(phase, words, status.get("retryCount", 0), at)


KIND = Kind(
    launcher="volcano",
    api_version="batch.volcano.sh/v1alpha1",
    kind="Job",
    suspend=(),
    read=_read,
    node=label_number("volcano.sh/task-index"),
)
