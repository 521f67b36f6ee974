"""Controls JobSets and TrainJobs, modelled on JobSet 0.12 (pkg/controllers) and Kubeflow Trainer 2.3.

A TrainJob with its TrainingRuntime becomes a JobSet of the same name, with what the torch plugin adds. A
JobSet becomes Jobs and a headless Service; its failure policy restarts all of them. Left out: startup
and success policies, dependencies, restarts of single Jobs, ttlSecondsAfterFinished, validation; of
TrainJobs also ClusterTrainingRuntimes, initializers, and all of the trainer but numNodes and
numProcPerNode.
"""

import copy
import re

from tests.standin.objects import Object, child, deleted, headless, is_true, owned_by, set_condition
from tests.standin.server import Server

_JOBSET = "jobset.x-k8s.io/v1alpha2"
_KEY = "jobset.sigs.k8s.io"
_TRAINJOB = "trainer.kubeflow.org/v1alpha1"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def sync(server: Server) -> None:
    """Bring every TrainJob and every JobSet one step further."""
    for one in server.all(_TRAINJOB, "TrainJob"):
        if not is_true(one, "Complete") and not is_true(one, "Failed"):
            _sync_trainjob(server, one)
    for one in server.all(_JOBSET, "JobSet"):
        _sync(server, one)


def _sync(server: Server, one: Object) -> None:
    status, parts = copy.deepcopy(one.get("status", {})), one["spec"]["replicatedJobs"]
    jobs = server.owned(one, "batch/v1", "Job")
    attempt = str(status.get("restarts", 0))
    current = [job for job in jobs if _labels(job)["restart-attempt"] == attempt]
    failed = [job for job in current if is_true(job, "Failed")]
    complete = [job for job in current if is_true(job, "Complete")]
    active = [job for job in current if job not in failed and job not in complete]
    status["replicatedJobsStatus"] = [
        _part_status(part["name"], active, complete, failed) for part in parts
    ]
    ended = is_true(one, "Completed") or is_true(one, "Failed")
    for job in active if ended else [job for job in jobs if job not in current]:
        server.delete(job)
    if ended:
        pass
    elif failed:
        _fail(server, one, status, failed)
    elif len(complete) == sum(part["replicas"] for part in parts):
        message = "jobset completed successfully"
        set_condition(status, "Completed", "AllJobsCompleted", message)
    else:
        _run(server, one, status, active)
    server.change(one, status=status)


def _labels(job: Object) -> dict[str, str]:
    """Return the labels that JobSet has given a Job, without their prefix."""
    return {key.removeprefix(f"{_KEY}/"): value for key, value in job["metadata"]["labels"].items()}


def _part_status(
    name: str, active: list[Object], complete: list[Object], failed: list[Object]
) -> Object:
    """Return the status of a replicated job."""

    def count(jobs: list[Object]) -> int:
        return sum(_labels(job)["replicatedjob-name"] == name for job in jobs)

    def up(job: Object) -> bool:
        status = job.get("status", {})
        ready: int = status.get("succeeded", 0) + status.get("ready", 0)
        return bool(ready >= job["spec"]["parallelism"])

    return {
        "name": name,
        "ready": count([job for job in active if up(job)]),
        "succeeded": count(complete),
        "failed": count(failed),
        "active": count([job for job in active if job.get("status", {}).get("active")]),
        "suspended": count([job for job in active if job["spec"].get("suspend")]),
    }


def _fail(server: Server, one: Object, status: Object, failed: list[Object]) -> None:
    """Do what the failure policy says: its first rule that fits a failed Job decides."""
    policy = one["spec"].get("failurePolicy")
    action, job = _rule(policy, failed)
    first = f"(first failed job: {job['metadata']['name']})"
    counted = status.get("restartsCountTowardsMax", 0)
    if policy is None:
        reason, message = "FailedJobs", "jobset failed due to one or more job failures"
    elif action == "FailJobSet":
        reason = "FailJobSetFailurePolicyAction"
        message = "applying FailJobSet failure policy action"
    elif action == "RestartJobSet" and counted >= policy.get("maxRestarts", 0):
        reason = "ReachedMaxRestarts"
        message = "jobset failed due to reaching max number of restarts"
    else:
        status["restarts"] = status.get("restarts", 0) + 1
        status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        message = f"applying {action} failure policy action {first}"
        server.event(one, f"{action}FailurePolicyAction", message, kind="Warning")
        return
    set_condition(status, "Failed", reason, f"{message} {first}")


def _rule(policy: Object | None, failed: list[Object]) -> tuple[str, Object]:
    """Return the action for failed Jobs, and the Job it applies to."""
    for rule in (policy or {}).get("rules", []):
        for job in failed:
            found = is_true(job, "Failed") or {}
            patterns = rule.get("onJobFailureMessagePatterns") or [""]
            part = _labels(job)["replicatedjob-name"]
            if (
                found["reason"] in (rule.get("onJobFailureReasons") or [found["reason"]])
                and any(re.search(pattern, found["message"]) for pattern in patterns)
                and part in (rule.get("targetReplicatedJobs") or [part])
            ):
                return rule["action"], job
    return "RestartJobSet", failed[0]


def _run(server: Server, one: Object, status: Object, active: list[Object]) -> None:
    """Create what is missing, and suspend, resume or scale the Jobs."""
    name, network = one["metadata"]["name"], one["spec"]["network"]
    assert network["enableDNSHostnames"] is True
    selector = {f"{_KEY}/jobset-name": name}
    unready = network.get("publishNotReadyAddresses", True)
    server.ensure(headless(one, network["subdomain"], selector, unready=unready))
    suspended = one["spec"].get("suspend", False)
    for part in one["spec"]["replicatedJobs"]:
        for index in range(part["replicas"]):
            wanted = _job(one, part, index)
            job = server.ensure(wanted)
            if owned_by(job, one) and not deleted(job):
                keys = ("completions", "parallelism", "suspend")
                changes = {key: wanted["spec"][key] for key in keys}
                server.change(job, spec=job["spec"] | changes)
    if suspended:
        set_condition(status, "Suspended", "SuspendedJobs", "jobset is suspended")
    else:
        set_condition(status, "Suspended", "ResumeJobs", "jobset is resumed", value="False")


def _job(one: Object, part: Object, index: int) -> Object:
    template, name = copy.deepcopy(part["template"]), one["metadata"]["name"]
    metadata, spec = template.get("metadata", {}), template["spec"]
    own = {
        f"{_KEY}/jobset-name": name,
        f"{_KEY}/replicatedjob-name": part["name"],
        f"{_KEY}/replicatedjob-replicas": str(part["replicas"]),
        f"{_KEY}/restart-attempt": str(one.get("status", {}).get("restarts", 0)),
        f"{_KEY}/job-index": str(index),
    }
    for given in (metadata, spec["template"].setdefault("metadata", {})):
        given["labels"] = given.get("labels", {}) | own
        given["annotations"] = given.get("annotations", {}) | own
    spec["template"]["spec"]["subdomain"] = one["spec"]["network"]["subdomain"]
    spec["suspend"] = one["spec"].get("suspend", False)
    job = f"{name}-{part['name']}-{index}"
    return child(one, "batch/v1", "Job", job, metadata=metadata, spec=spec)


# --- TrainJobs


def _sync_trainjob(server: Server, one: Object) -> None:
    namespace, reference = one["metadata"]["namespace"], one["spec"]["runtimeRef"]
    assert reference["apiGroup"] == _TRAINJOB.partition("/")[0]
    runtime = server.get(_TRAINJOB, reference["kind"], namespace, reference["name"])
    if runtime is None:
        return
    suspended = one["spec"].get("suspend", False)
    jobset = server.ensure(_jobset(one, runtime))
    jobset = server.change(jobset, spec=jobset["spec"] | {"suspend": suspended})
    status = copy.deepcopy(one.get("status", {}))
    if suspended:
        set_condition(status, "Suspended", "Suspended", "TrainJob is suspended")
    else:
        set_condition(status, "Suspended", "Resumed", "TrainJob is resumed", value="False")
    for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
        if found := is_true(jobset, theirs):
            set_condition(status, ours, found["reason"], found["message"])
    status["jobsStatus"] = jobset.get("status", {}).get("replicatedJobsStatus", [])
    server.change(one, status=status)


def _jobset(one: Object, runtime: Object) -> Object:
    template, name = copy.deepcopy(runtime["spec"]["template"]), one["metadata"]["name"]
    nodes, procs = (one["spec"]["trainer"][key] for key in ("numNodes", "numProcPerNode"))
    for part in template["spec"]["replicatedJobs"]:
        steps = part["template"].get("metadata", {}).get("labels", {})
        if steps.get(_STEP) != "trainer" or "torch" not in runtime["spec"]["mlPolicy"]:
            continue
        values = {
            "PET_NNODES": str(nodes),
            "PET_NPROC_PER_NODE": str(procs),
            "PET_MASTER_ADDR": f"{name}-{part['name']}-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        added: list[Object] = [{"name": key, "value": value} for key, value in values.items()]
        added.append({"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}})
        part["template"]["spec"] |= {"completions": nodes, "parallelism": nodes}
        for container in part["template"]["spec"]["template"]["spec"]["containers"]:
            if container["name"] == "node":
                container["env"] = [*container.get("env", []), *added]
    metadata = {"labels": template.get("metadata", {}).get("labels", {})}
    spec = template["spec"] | {"suspend": one["spec"].get("suspend", False)}
    return child(one, _JOBSET, "JobSet", name, metadata=metadata, spec=spec)
