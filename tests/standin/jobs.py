"""Controls batch/v1 Jobs of the kit, modelled on pkg/controller/job of Kubernetes 1.34.

Indexed completions, podFailurePolicy, backoffLimit, successPolicy by count, suspend, scaling, and the
wait before a failed pod is replaced: 10 s, doubled with every failure, at most 10 min; per index
with backoffLimitPerIndex, else per Job. Left out, because no job of the cluster suite needs it:
deadlines, ttlSecondsAfterFinished, FailIndex, and an index that fails more often than backoffLimit
allows for all.
"""

import copy
import time
from collections import defaultdict
from dataclasses import dataclass

from tests.standin.objects import (
    Object,
    child,
    deleted,
    exit_code,
    finished,
    is_true,
    path_of,
    set_condition,
)
from tests.standin.server import Server

_FINALIZER = "batch.kubernetes.io/job-tracking"
_INDEX = "batch.kubernetes.io/job-completion-index"
_FIRST_WAIT, _LONGEST_WAIT = 10.0, 600.0  # seconds


@dataclass
class _Failures:
    """How often pods of an index, or of a whole Job, have failed since one succeeded."""

    count: int = 0
    last: float = 0.0

    def waited(self) -> bool:
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (self.count - 1))
        return not self.count or time.time() > self.last + wait


_failures: dict[tuple[str, int], _Failures] = defaultdict(_Failures)  # by Job and index


def sync(server: Server) -> None:
    """Bring every Job one step further."""
    jobs = {job["metadata"]["uid"]: job for job in server.all("batch/v1", "Job")}
    for job in jobs.values():
        if not is_true(job, "Complete") and not is_true(job, "Failed"):
            _sync(server, _defaulted(server, job))
    for pod in server.all("v1", "Pod"):  # pods of a deleted Job are no longer counted
        owner = pod["metadata"].get("ownerReferences", [{}])[0]
        if owner.get("kind") == "Job" and owner["uid"] not in jobs:
            _release(server, pod)


def _defaulted(server: Server, job: Object) -> Object:
    """Add to a new Job what the API server adds: the labels that select its pods."""
    if "selector" in job["spec"]:
        return job
    spec = {"suspend": False, "backoffLimit": 6} | copy.deepcopy(job["spec"])
    assert spec["completionMode"] == "Indexed", spec
    assert spec["completions"] == spec["parallelism"], spec
    uid, metadata = job["metadata"]["uid"], spec["template"].setdefault("metadata", {})
    labels = {"controller-uid": uid, "job-name": job["metadata"]["name"]}
    prefixed = {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    metadata["labels"] = metadata.get("labels", {}) | labels | prefixed
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return server.change(job, spec=spec)


def _sync(server: Server, job: Object) -> None:
    spec, status = job["spec"], copy.deepcopy(job.get("status", {}))
    pods = server.owned(job, "v1", "Pod")
    ending = _count(server, job, status, pods) or _ending(job, status)
    active = [pod for pod in pods if not finished(pod) and not deleted(pod)]
    last = 0 if ending or spec["suspend"] else spec["completions"]
    unwanted = [pod for pod in active if _index_of(pod) >= last]
    for pod in unwanted:
        _release(server, pod)
        server.delete(pod)
    if ending and ending[0] == "FailureTarget":
        status["failed"] += len(unwanted)
    created = 0 if unwanted else _create(server, job, status, pods, range(last))
    remaining = [pod for pod in active if pod not in unwanted]
    status["active"] = len(remaining) + created
    status["ready"] = sum(bool(is_true(pod, "Ready")) for pod in remaining)
    status["terminating"] = sum(not finished(pod) for pod in pods) - len(remaining)
    if ending:
        _end(server, job, status, ending)
    elif spec["suspend"]:
        set_condition(status, "Suspended", "JobSuspended", "Job suspended")
    else:
        set_condition(status, "Suspended", "JobResumed", "Job resumed", value="False")
    server.change(job, status=status)


def _count(
    server: Server, job: Object, status: Object, pods: list[Object]
) -> tuple[str, str, str] | None:
    """Count the pods that have newly ended; return the condition to which a FailJob rule leads."""
    ending = None
    succeeded = set(status.get("completedIndexes", "").split(",")) - {""}
    for pod in pods:
        if not finished(pod) or _FINALIZER not in pod["metadata"].get("finalizers", []):
            continue
        failures = _failures_of(job, _index_of(pod))
        if pod["status"]["phase"] == "Succeeded":
            succeeded.add(str(_index_of(pod)))
            failures.count = 0
        else:
            action, message = judge(job["spec"], pod)
            failures.count, failures.last = failures.count + 1, time.time()
            status["failed"] = status.get("failed", 0) + (action != "Ignore")
            if action == "FailJob":
                ending = ending or ("FailureTarget", "PodFailurePolicy", message)
        _release(server, pod)
    status.setdefault("failed", 0)
    status["succeeded"] = len(succeeded)
    status["completedIndexes"] = ",".join(sorted(succeeded, key=int))
    return ending


def _ending(job: Object, status: Object) -> tuple[str, str, str] | None:
    """Return the condition (type, reason, message) with which a Job ends now, if it does."""
    for kind in ("SuccessCriteriaMet", "FailureTarget"):
        if before := is_true(job, kind):
            return kind, before["reason"], before["message"]
    spec, done = job["spec"], status["succeeded"]
    if status["failed"] > spec["backoffLimit"]:
        reason = "BackoffLimitExceeded"
        return "FailureTarget", reason, "Job has reached the specified backoff limit"
    if any(
        done >= rule["succeededCount"] for rule in spec.get("successPolicy", {}).get("rules", [])
    ):
        return "SuccessCriteriaMet", "SuccessPolicy", "Matched rules at index 0"
    if done >= spec["completions"]:
        message = "Reached expected number of succeeded pods"
        return "SuccessCriteriaMet", "CompletionsReached", message
    return None


def _end(server: Server, job: Object, status: Object, ending: tuple[str, str, str]) -> None:
    """Set the condition, and the final condition as soon as no pod runs."""
    kind, reason, message = ending
    set_condition(status, kind, reason, message)
    if status["terminating"]:
        return
    if kind == "SuccessCriteriaMet":
        set_condition(status, "Complete", reason, message)
        server.event(job, "Completed", "Job completed")
    else:
        set_condition(status, "Failed", reason, message)
        server.event(job, reason, message, kind="Warning")


def judge(spec: Object, pod: Object) -> tuple[str, str]:
    """Return the action of the first rule of podFailurePolicy that fits a failed pod, and a message."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        action = rule["action"]
        end = f"matching {action} rule at index {number}"
        for condition in rule.get("onPodConditions", []):
            if is_true(pod, condition["type"]):
                return action, f"Pod {name} has condition {condition['type']} {end}"
        if codes := rule.get("onExitCodes"):
            container, code = pod["spec"]["containers"][0]["name"], exit_code(pod)
            listed = (code in codes["values"]) == (codes["operator"] == "In")
            if listed and codes.get("containerName", container) == container:
                return (
                    action,
                    f"Container {container} for pod {name} failed with exit code {code} {end}",
                )
    return "Count", ""


def _create(server: Server, job: Object, status: Object, pods: list[Object], indexes: range) -> int:
    """Create the pods that are missing and return their number."""
    done = {int(index) for index in status["completedIndexes"].split(",") if index}
    there = {_index_of(pod) for pod in pods if not finished(pod)} | done
    missing = [i for i in indexes if i not in there and _failures_of(job, i).waited()]
    return sum(server.try_to_create(_pod(job, index), owner=job) for index in missing)


def _pod(job: Object, index: int) -> Object:
    template, name = copy.deepcopy(job["spec"]["template"]), job["metadata"]["name"]
    path = f"metadata.annotations['{_INDEX}']"
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for container in template["spec"]["containers"]:
        container["env"] = [*container.get("env", []), variable]
    metadata = {
        "labels": template["metadata"]["labels"] | {_INDEX: str(index)},
        "annotations": template["metadata"].get("annotations", {}) | {_INDEX: str(index)},
        "finalizers": [_FINALIZER],
    }
    spec = template["spec"] | {"hostname": f"{name}-{index}"}
    pod = child(job, "v1", "Pod", "", metadata=metadata, spec=spec, status={"phase": "Pending"})
    del pod["metadata"]["name"]
    pod["metadata"]["generateName"] = f"{name}-{index}-"
    return pod


def _index_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][_INDEX])


def _failures_of(job: Object, index: int) -> _Failures:
    per_index = "backoffLimitPerIndex" in job["spec"]
    return _failures[job["metadata"]["uid"], index if per_index else -1]


def _release(server: Server, pod: Object) -> None:
    """Remove the Job controller's finalizer from a pod, so that the pod can be removed."""
    with server.changed:
        metadata = server.objects.get(path_of(pod), pod)["metadata"]
        rest = [key for key in metadata.get("finalizers", []) if key != _FINALIZER]
        server.change(pod, metadata=metadata | {"finalizers": rest})
