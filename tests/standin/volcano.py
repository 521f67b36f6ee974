"""Controls Volcano Jobs, modelled on pkg/controllers/job of Volcano 1.13.

Tasks, job policies by event and by exit code, maxRetry, Commands (AbortJob, ResumeJob), and the
Service and names of the plugin svc. Left out: the scheduler, queues, minAvailable below the
number of pods, policies of tasks, minSuccess, ttlSecondsAfterFinished, and svc's ConfigMap and
variables.
"""

import copy

from tests.standin.objects import Object, child, deleted, exit_code, finished, headless, now
from tests.standin.server import Server

_pods: dict[str, dict[str, Object]] = {}  # of each Job, as they were at the last sync
_handled: set[tuple[str, str]] = set()  # a pod's uid, and an event that a policy was applied to


def sync(server: Server) -> None:
    """Bring every Job one step further."""
    commands = {}
    for command in server.all("bus.volcano.sh/v1alpha1", "Command"):
        commands[command["target"]["uid"]] = command["action"]
        server.delete(command)
    for job in server.all("batch.volcano.sh/v1alpha1", "Job"):
        pods = server.owned(job, "v1", "Pod")
        status = copy.deepcopy(job.get("status", {}))
        state = status.setdefault("state", {"phase": "Pending", "lastTransitionTime": now()})
        before = state["phase"]
        action = commands.get(job["metadata"]["uid"]) or _policy(job, status, pods)
        _execute(server, job, status, pods, action)
        if state["phase"] != before:
            state["lastTransitionTime"] = now()
        server.change(job, status=status)


def _policy(job: Object, status: Object, pods: list[Object]) -> str:
    """Return the action of the first policy that fits what has newly happened to the pods."""
    action = ""
    before = _pods.get(job["metadata"]["uid"], {})
    here = _pods[job["metadata"]["uid"]] = {pod["metadata"]["uid"]: pod for pod in pods}
    gone = [pod for uid, pod in before.items() if uid not in here]
    for pod in [*pods, *gone]:
        event, code = "", 0
        if pod in gone or deleted(pod):
            event = "PodEvicted"
        elif pod["status"]["phase"] == "Failed":
            event, code = "PodFailed", exit_code(pod)
        key = (pod["metadata"]["uid"], event)
        # Pods of an earlier version were deleted by the controller itself.
        version = int(pod["metadata"]["annotations"]["volcano.sh/job-version"])
        if not event or key in _handled or version < status.get("version", 0):
            continue
        _handled.add(key)
        for policy in job["spec"].get("policies", []):
            events = {policy.get("event"), *policy.get("events", [])}
            if {event, "*"} & events or (code and policy.get("exitCode") == code):
                action = action or policy["action"]
                break
    return action


def _execute(server: Server, job: Object, status: Object, pods: list[Object], action: str) -> None:
    """Do what an action does in a Job's phase, as in pkg/controllers/job/state."""
    state, phase = status["state"], status["state"]["phase"]
    after = {"RestartJob": "Restarting", "AbortJob": "Aborting", "TerminateJob": "Terminating"}
    if phase in ("Pending", "Running") and action in after:
        state["phase"] = after[action]
        status["retryCount"] = status.get("retryCount", 0) + (action == "RestartJob")
        _kill(server, status, pods, keep_ended=action != "RestartJob")
    elif phase in ("Pending", "Running"):
        _create(server, job, status, pods)
        _count(status, pods)
        least, ended = job["spec"]["minAvailable"], status["succeeded"] + status["failed"]
        if phase == "Pending":
            state["phase"] = "Running" if status["running"] + ended >= least else "Pending"
        elif ended == sum(task["replicas"] for task in job["spec"]["tasks"]):
            state["phase"] = "Completed" if status["succeeded"] >= least else "Failed"
    elif phase == "Restarting":
        _kill(server, status, pods, keep_ended=False)
        if status.get("retryCount", 0) >= job["spec"].get("maxRetry", 3):
            state["phase"] = "Failed"
        elif not pods:
            state["phase"] = "Pending"
    elif action == "ResumeJob" and phase in ("Aborting", "Aborted"):
        status["retryCount"] = status.get("retryCount", 0) + 1
        state["phase"] = "Restarting"
    else:
        _kill(server, status, pods, keep_ended=True)
        running = status["running"] + status["pending"] + status["terminating"]
        if not running and phase in ("Aborting", "Terminating"):
            state["phase"] = phase.replace("ing", "ed")


def _kill(server: Server, status: Object, pods: list[Object], *, keep_ended: bool) -> None:
    """Delete the pods, with a new version, so that their end does not count as another failure."""
    found = [pod for pod in pods if not deleted(pod) and not (finished(pod) and keep_ended)]
    for pod in found:
        server.delete(pod)
    status["version"] = status.get("version", 0) + bool(found)
    _count(status, pods)


def _count(status: Object, pods: list[Object]) -> None:
    phases = ["terminating" if deleted(pod) else pod["status"]["phase"].lower() for pod in pods]
    for name in ("pending", "running", "succeeded", "failed", "terminating"):
        status[name] = phases.count(name)


def _create(server: Server, job: Object, status: Object, pods: list[Object]) -> None:
    """Create the Service and the missing pods, and delete surplus pods."""
    name, svc = job["metadata"]["name"], job["spec"]["plugins"]["svc"]
    unready = "--publish-not-ready-addresses=true" in svc
    server.ensure(headless(job, name, {"volcano.sh/job-name": name}, unready=unready))
    wanted = {
        f"{name}-{task['name']}-{index}": (task, index)
        for task in job["spec"]["tasks"]
        for index in range(task["replicas"])
    }
    there = {pod["metadata"]["name"]: pod for pod in pods}
    for extra in there.keys() - wanted.keys():
        if not deleted(there[extra]):
            server.delete(there[extra])
    for pod, (task, index) in wanted.items():
        if pod not in there:
            server.try_to_create(_pod(job, task, index, status.get("version", 0)), owner=job)


def _pod(job: Object, task: Object, index: int, version: int) -> Object:
    template, name = copy.deepcopy(task["template"]), job["metadata"]["name"]
    metadata, pod = template.get("metadata", {}), f"{name}-{task['name']}-{index}"
    both = {
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
        "volcano.sh/job-name": name,
    }
    annotations = {
        "volcano.sh/job-version": str(version),
        "scheduling.k8s.io/group-name": f"{name}-{job['metadata']['uid']}",
    }
    labels = {"volcano.sh/job-namespace": job["metadata"]["namespace"]}
    metadata["labels"] = metadata.get("labels", {}) | both | labels
    metadata["annotations"] = metadata.get("annotations", {}) | both | annotations
    spec = template["spec"] | {"hostname": pod, "subdomain": name}
    return child(job, "v1", "Pod", pod, metadata=metadata, spec=spec, status={"phase": "Pending"})
