"""A job in an AppWrapper: the job's manifest, and one state for both. Pure; see render/app_wrapper.py.

The verbs suspend, cancel and delete the wrapper, because its controller would make the job again.
"""

from collections.abc import Sequence
from dataclasses import replace

from k8s.plan.job_kind import Object, Phase, State, condition

WRAPPER = ("workload.codeflare.dev/v1beta2", "AppWrapper")
SUSPEND_FIELD = ("spec", "suspend")


def is_wrapper(manifest: Object) -> bool:
    return (manifest.get("apiVersion"), manifest.get("kind")) == WRAPPER


def with_contents(manifests: Sequence[Object]) -> list[Object]:
    """Return the manifests, and after them the objects inside the AppWrappers among them."""
    parts = [part for one in filter(is_wrapper, manifests) for part in one["spec"]["components"]]
    return [*manifests, *(part["template"] for part in parts)]


def owner(found: Object) -> str | None:
    """Return the name of the AppWrapper that made an object."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((one["name"] for one in owners if one["kind"] == WRAPPER[1]), None)


def state(wrapper: Object, inner: State) -> State:
    """Return the state of a wrapped job; `inner` is the job's own state, pending while there is no job.

    A wrapper that has ended may have deleted its job; then the wrapper's conditions give the reason.
    """
    status = wrapper.get("status") or {}
    phase = status.get("phase", "")
    problem = (condition(wrapper, "Unhealthy") or {}).get("message", "")
    restarts = inner.restarts + status.get("resettingCount", 0)
    if phase in ("Succeeded", "Failed"):
        ended = Phase.SUCCEEDED if phase == "Succeeded" else Phase.FAILED
        if inner.phase is ended:
            return State(ended, inner.reason, restarts, inner.ended_at or _last_transition(status))
        return State(ended, problem, restarts, _last_transition(status))
    if wrapper["spec"].get("suspend") or phase in ("Suspended", "Suspending"):
        return State(Phase.SUSPENDED, "spec.suspend of its AppWrapper", restarts)
    if phase == "Resetting":
        return State(Phase.RESTARTING, problem, restarts)
    return replace(inner, restarts=restarts)


def _last_transition(status: Object) -> str | None:
    times = [one.get("lastTransitionTime") or "" for one in status.get("conditions") or []]
    return max(times, default="") or None
