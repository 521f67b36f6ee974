"""A job inside an AppWrapper: which it is, and how both together are. Pure; see render/app_wrapper.py.

The wrapper is what is suspended, cancelled and deleted: its controller makes the job, and makes it anew.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from k8s.plan.status import Object, Phase, State, condition

WRAPPER = ("workload.codeflare.dev/v1beta2", "AppWrapper")
SUSPEND = ("spec", "suspend")


def is_wrapper(manifest: Mapping[str, Any]) -> bool:
    """Return whether a manifest is an AppWrapper."""
    return (manifest.get("apiVersion"), manifest.get("kind")) == WRAPPER


def contents(manifest: Object) -> list[Object]:
    """Return the objects that an AppWrapper holds, or the manifest itself when it is none."""
    if not is_wrapper(manifest):
        return [manifest]
    return [one["template"] for one in manifest["spec"]["components"]]


def owner(found: Object) -> str | None:
    """Return the name of the AppWrapper that has made an object."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((one["name"] for one in owners if one["kind"] == WRAPPER[1]), None)


def fold(wrapper: Object, inner: State) -> State:
    """Return how a wrapped job is; `inner` is how the job says it is, pending while there is none.

    A wrapper that has ended may have deleted its job: then only its own conditions tell.
    """
    status = wrapper.get("status") or {}
    phase = status.get("phase", "")
    trouble = (condition(wrapper, "Unhealthy") or {}).get("message", "")
    restarts = inner.restarts + status.get("resettingCount", 0)
    if phase in ("Succeeded", "Failed"):
        ended = Phase.SUCCEEDED if phase == "Succeeded" else Phase.FAILED
        told = inner.phase is ended
        return State(
            ended,
            inner.reason if told else trouble,
            restarts,
            (inner.ended_at if told else None) or _newest(status),
        )
    if wrapper["spec"].get("suspend") or phase in ("Suspended", "Suspending"):
        return State(Phase.SUSPENDED, "spec.suspend of its AppWrapper", restarts)
    if phase == "Resetting":
        return State(Phase.RESTARTING, trouble, restarts)
    return replace(inner, restarts=restarts)


def _newest(status: Object) -> str | None:
    times = [one.get("lastTransitionTime") or "" for one in status.get("conditions") or []]
    return max(times, default="") or None
