"""The stand-in's controller of JobSets, after pkg/controllers of JobSet 0.12.

Jobs of replicated jobs, the headless Service, the failure policy with its rules and restarts of all,
suspend, success of all, ttlSecondsAfterFinished. Left out: startup and success policies, dependencies,
recreating single Jobs, in-place restarts, exclusive placement, and validation.
"""

import copy
import re
import time
from datetime import datetime

from tests.standin.store import Object, Store, is_true, owned_by, reference, with_condition

_KEY = "jobset.sigs.k8s.io"
_API = "jobset.x-k8s.io/v1alpha2"


def sync(store: Store) -> None:
    """Bring every JobSet one step further."""
    for one in store.all(_API, "JobSet"):
        _sync(store, one)


def _sync(store: Store, one: Object) -> None:
    status = copy.deepcopy(one.get("status", {}))
    jobs = store.owned(one, "batch/v1", "Job")
    attempt = status.get("restarts", 0)
    mine = [
        job for job in jobs if int(job["metadata"]["labels"][f"{_KEY}/restart-attempt"]) == attempt
    ]
    failed = [job for job in mine if is_true(job, "Failed")]
    complete = [job for job in mine if is_true(job, "Complete")]
    active = [job for job in mine if job not in failed and job not in complete]
    status["replicatedJobsStatus"] = [
        _told(part["name"], active, complete, failed) for part in one["spec"]["replicatedJobs"]
    ]
    if ended := is_true(one, "Completed") or is_true(one, "Failed"):
        for job in active:
            store.delete(job)
        seconds = one["spec"].get("ttlSecondsAfterFinished")
        at = datetime.fromisoformat(ended["lastTransitionTime"]).timestamp()
        if seconds is not None and time.time() >= at + seconds:
            store.delete(one)
            return
    else:
        for job in jobs:
            if job not in mine:
                store.delete(job)
        if failed:
            _fail(store, one, status, failed)
        elif len(complete) == sum(part["replicas"] for part in one["spec"]["replicatedJobs"]):
            words = "jobset completed successfully"
            _say(store, one, status, "Completed", "AllJobsCompleted", words)
            status["terminalState"] = "Completed"
        else:
            _run(store, one, status, active)
    store.change(one, status=status)


def _told(name: str, active: list[Object], complete: list[Object], failed: list[Object]) -> Object:
    """Return how a replicated job's Jobs are."""

    def count(jobs: list[Object]) -> int:
        return sum(job["metadata"]["labels"][f"{_KEY}/replicatedjob-name"] == name for job in jobs)

    def whole(job: Object) -> bool:
        told = job.get("status", {})
        return bool(told.get("succeeded", 0) + told.get("ready", 0) >= job["spec"]["parallelism"])

    return {
        "name": name,
        "ready": count([job for job in active if whole(job)]),
        "succeeded": count(complete),
        "failed": count(failed),
        "active": count([job for job in active if job.get("status", {}).get("active")]),
        "suspended": count([job for job in active if job["spec"].get("suspend")]),
    }


def _say(store: Store, one: Object, status: Object, *condition: str) -> None:
    before = status.get("conditions", [])
    status["conditions"] = with_condition(before, *condition)
    store.event(one, condition[1], condition[2])


def _fail(store: Store, one: Object, status: Object, failed: list[Object]) -> None:
    """Do what the failure policy says: its first rule that fits a failed Job decides."""
    policy = one["spec"].get("failurePolicy")
    action, job = _rule(policy, failed)
    first = f"(first failed job: {job['metadata']['name']})"
    counted = status.get("restartsCountTowardsMax", 0)
    if policy is None:
        reason, words = "FailedJobs", "jobset failed due to one or more job failures"
    elif action == "FailJobSet":
        reason = "FailJobSetFailurePolicyAction"
        words = "applying FailJobSet failure policy action"
    elif action == "RestartJobSet" and counted >= policy.get("maxRestarts", 0):
        reason, words = "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts"
    else:
        status["restarts"] = status.get("restarts", 0) + 1
        status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        words = f"applying {action} failure policy action {first}"
        store.event(one, f"{action}FailurePolicyAction", words, kind="Warning")
        return
    _say(store, one, status, "Failed", reason, f"{words} {first}")
    status["terminalState"] = "Failed"


def _rule(policy: Object | None, failed: list[Object]) -> tuple[str, Object]:
    for rule in (policy or {}).get("rules", []):
        for job in failed:
            found = is_true(job, "Failed") or {}
            reasons = rule.get("onJobFailureReasons") or [found["reason"]]
            patterns = rule.get("onJobFailureMessagePatterns") or [""]
            parts = rule.get("targetReplicatedJobs")
            part = job["metadata"]["labels"][f"{_KEY}/replicatedjob-name"]
            said = any(re.search(pattern, found["message"]) for pattern in patterns)
            if found["reason"] in reasons and said and part in (parts or [part]):
                return rule["action"], job
    return "RestartJobSet", failed[0]


def _run(store: Store, one: Object, status: Object, active: list[Object]) -> None:
    """Make what lacks, and suspend or resume what there is."""
    spec, metadata = one["spec"], one["metadata"]
    namespace, network = metadata["namespace"], spec.get("network", {})
    domain = network.get("subdomain", metadata["name"])
    suspended = spec.get("suspend", False)
    if not store.get("v1", "Service", namespace, domain):
        store.create(_service(one, domain))
    for part in spec["replicatedJobs"]:
        for index in range(part["replicas"]):
            job = _job(one, part, index, domain, suspended=suspended)
            held = store.get("batch/v1", "Job", namespace, job["metadata"]["name"])
            if held is None:
                store.create(job)
            elif owned_by(held, one):  # another size
                size = {key: job["spec"][key] for key in ("completions", "parallelism")}
                store.change(held, spec=held["spec"] | size)
    for job in active:
        if job["spec"].get("suspend", False) != suspended:
            now_held = store.get("batch/v1", "Job", namespace, job["metadata"]["name"]) or job
            store.change(job, spec=now_held["spec"] | {"suspend": suspended})
    before = status.get("conditions", [])
    state, reason, words = ("True", "SuspendedJobs", "jobset is suspended")
    if not suspended:
        state, reason, words = ("False", "ResumeJobs", "jobset is resumed")
    status["conditions"] = with_condition(before, "Suspended", reason, words, status=state)


def _service(one: Object, domain: str) -> Object:
    network = one["spec"].get("network", {})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": domain,
            "namespace": one["metadata"]["namespace"],
            "ownerReferences": [reference(one)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
            "selector": {f"{_KEY}/jobset-name": one["metadata"]["name"]},
        },
    }


def _job(one: Object, part: Object, index: int, domain: str, *, suspended: bool) -> Object:
    template = copy.deepcopy(part["template"])
    metadata, spec = template.get("metadata", {}), template["spec"]
    name = one["metadata"]["name"]
    own = {
        f"{_KEY}/jobset-name": name,
        f"{_KEY}/replicatedjob-name": part["name"],
        f"{_KEY}/replicatedjob-replicas": str(part["replicas"]),
        f"{_KEY}/restart-attempt": str(one.get("status", {}).get("restarts", 0)),
        f"{_KEY}/job-index": str(index),
    }
    pod = spec["template"].setdefault("metadata", {})
    pod["labels"] = pod.get("labels", {}) | own
    pod["annotations"] = pod.get("annotations", {}) | own
    spec["template"]["spec"]["subdomain"] = domain
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{name}-{part['name']}-{index}",
            "namespace": one["metadata"]["namespace"],
            "labels": metadata.get("labels", {}) | own,
            "annotations": metadata.get("annotations", {}) | own,
            "ownerReferences": [reference(one)],
        },
        "spec": spec | {"suspend": suspended},
    }
