"""An AppWrapper around a job's objects: they are queued together and deleted together.

render.py job.yaml --set appWrapper=true
"""

from typing import Any

from k8s.plan.launcher import Launcher
from k8s.plan.model import Plan
from trainer.config.exits import Action, codes_for

_ANNOTATION = "workload.codeflare.dev.appwrapper/"
_LONGEST = "24h"  # the controller allows no more
_KEPT = "5m"  # after a failure; without it the pods, their logs and exit codes are deleted at once


def wrap(objects: tuple[dict[str, Any], ...], plan: Plan, launcher: Launcher) -> dict[str, Any]:
    """Return the AppWrapper; the last object is the job, whose pods the queue counts."""
    annotations = {
        # 0, because the job itself retries. Annotations of the job file take precedence.
        f"{_ANNOTATION}retryLimit": "0",
        # What its controller waits for a failed or missing pod, which the job replaces.
        f"{_ANNOTATION}admissionGracePeriodDuration": _LONGEST,
        f"{_ANNOTATION}warmupGracePeriodDuration": _LONGEST,
        f"{_ANNOTATION}failureGracePeriodDuration": _LONGEST,
        f"{_ANNOTATION}deletionOnFailureGracePeriodDuration": _KEPT,
        f"{_ANNOTATION}terminalExitCodes": ",".join(map(str, codes_for(Action.FAIL))),
    }
    metadata = plan.identity.root_metadata
    pod_sets = [{"path": f"template.{path}", "replicas": n} for path, n in launcher.pod_sets(plan)]
    components: list[dict[str, Any]] = [{"template": one} for one in objects[:-1]]
    components.append({"podSets": pod_sets, "template": objects[-1]})
    spec: dict[str, Any] = {"suspend": True} if plan.lifetime.suspend else {}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {**metadata, "annotations": annotations | metadata.get("annotations", {})},
        "spec": spec | {"components": components},
    }
