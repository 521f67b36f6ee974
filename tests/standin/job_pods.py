"""The pods of the stand-in's Jobs, and the lists of their indexes."""

import copy
import re
from datetime import datetime

from tests.standin.failures import FAILURES, IGNORED, all_failures_of, failures_of
from tests.standin.store import Object, reference

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


def pod_of(job: Object, index: int, last: Object | None) -> Object:
    """Return a Job's pod of an index; `last` is the failed one that it replaces, if it is known."""
    template = copy.deepcopy(job["spec"]["template"])
    metadata, name = template["metadata"], job["metadata"]["name"]
    annotations = {INDEX: str(index)}
    if "backoffLimitPerIndex" in job["spec"]:
        counted = failures_of(job["spec"], last) if last else 0
        annotations[FAILURES] = str(counted)
        annotations[IGNORED] = str(all_failures_of(last) - counted if last else 0)
    for container in template["spec"]["containers"]:
        path = f"metadata.annotations['{INDEX}']"
        variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        container["env"] = [*container.get("env", []), variable]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-{index}-",
            "namespace": job["metadata"]["namespace"],
            "labels": metadata["labels"] | {INDEX: str(index)},
            "annotations": metadata.get("annotations", {}) | annotations,
            "finalizers": [FINALIZER],
            "ownerReferences": [reference(job)],
        },
        "spec": template["spec"] | {"hostname": f"{name}-{index}"},
        "status": {"phase": "Pending"},
    }


def index_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def since_epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def numbers(text: str) -> set[int]:
    """Return the numbers of a list such as 0,2-4."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def text_of(indexes: set[int]) -> str:
    return ",".join(str(index) for index in sorted(indexes))
