"""The stand-in's controller of Volcano Jobs, after pkg/controllers/job of Volcano 1.13.

Tasks, job policies by event and by exit code, maxRetry, Commands (AbortJob, ResumeJob), and of the
plugins the Service and the names of svc. Left out: the scheduler, queues, minAvailable below the number
of pods, policies of tasks, minSuccess, ttlSecondsAfterFinished, and svc's ConfigMap and variables.
"""

import copy

from tests.standin.store import Object, Refusal, Store, now, reference

_API = "batch.volcano.sh/v1alpha1"
_pods: dict[str, dict[str, Object]] = {}  # of each Job, as they last were
_seen: set[tuple[str, str]] = set()  # a pod and what has been told of it


def sync(store: Store) -> None:
    """Bring every Job one step further."""
    actions = _commanded(store)
    for job in store.all(_API, "Job"):
        pods = store.owned(job, "v1", "Pod")
        status = copy.deepcopy(job.get("status", {}))
        state = status.setdefault("state", {"phase": "Pending", "lastTransitionTime": now()})
        before = state["phase"]
        action = actions.get(job["metadata"]["uid"]) or _by_policy(job, status, pods)
        _execute(store, job, status, pods, action)
        if state["phase"] != before:
            state["lastTransitionTime"] = now()
        store.change(job, status=status)


def _commanded(store: Store) -> dict[str, str]:
    """Return the actions that Commands ask for, by their Job; a Command is deleted before it is done."""
    actions = {}
    for command in [*store.all("bus.volcano.sh/v1alpha1", "Command")]:
        actions[command["target"]["uid"]] = command["action"]
        store.delete(command)
    return actions


def _by_policy(job: Object, status: Object, pods: list[Object]) -> str:
    """Return what the first fitting policy says of what has newly happened to the pods."""
    action = ""
    before = _pods.get(job["metadata"]["uid"], {})
    here = _pods[job["metadata"]["uid"]] = {pod["metadata"]["uid"]: pod for pod in pods}
    gone = [pod for uid, pod in before.items() if uid not in here]
    for pod in [*pods, *gone]:
        happened, code = "", 0
        if pod in gone or "deletionTimestamp" in pod["metadata"]:
            happened = "PodEvicted"
        elif pod["status"]["phase"] == "Failed":
            happened = "PodFailed"
            code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        key = (pod["metadata"]["uid"], happened)
        # what a pod of an earlier version does is of no interest
        version = int(pod["metadata"]["annotations"]["volcano.sh/job-version"])
        if not happened or key in _seen or version < status.get("version", 0):
            continue
        _seen.add(key)
        for policy in job["spec"].get("policies", []):
            events = {policy.get("event"), *policy.get("events", [])}
            if {happened, "*"} & events or (code and policy.get("exitCode") == code):
                action = action or policy["action"]
                break
    return action


def _execute(store: Store, job: Object, status: Object, pods: list[Object], action: str) -> None:
    """Do what a Job's phase does with an action, as pkg/controllers/job/state says."""
    state, phase = status["state"], status["state"]["phase"]
    after = {"RestartJob": "Restarting", "AbortJob": "Aborting", "TerminateJob": "Terminating"}
    if phase in ("Pending", "Running") and action in after:
        state["phase"] = after[action]
        status["retryCount"] = status.get("retryCount", 0) + (action == "RestartJob")
        _kill(store, status, pods, keep_ended=action != "RestartJob")
    elif phase in ("Pending", "Running"):
        _make(store, job, status, pods)
        _count(status, pods)
        _advance(job, status)
    elif phase == "Restarting":
        _kill(store, status, pods, keep_ended=False)
        if status.get("retryCount", 0) >= job["spec"].get("maxRetry", 3):
            state["phase"] = "Failed"
        elif not pods:
            state["phase"] = "Pending"
    elif action == "ResumeJob" and phase in ("Aborting", "Aborted"):
        status["retryCount"] = status.get("retryCount", 0) + 1
        state["phase"] = "Restarting"
    else:
        _kill(store, status, pods, keep_ended=True)
        living = status["running"] + status["pending"] + status["terminating"]
        if not living and phase in ("Aborting", "Terminating"):
            state["phase"] = phase.replace("ing", "ed")


def _advance(job: Object, status: Object) -> None:
    """Go from Pending to Running, and from there to an end."""
    least, state = job["spec"]["minAvailable"], status["state"]
    ended = status["succeeded"] + status["failed"]
    if state["phase"] == "Pending":
        state["phase"] = "Running" if status["running"] + ended >= least else "Pending"
    elif ended == sum(task["replicas"] for task in job["spec"]["tasks"]):
        state["phase"] = "Completed" if status["succeeded"] >= least else "Failed"


def _kill(store: Store, status: Object, pods: list[Object], *, keep_ended: bool) -> None:
    """Delete the pods, with a new version, so that their end is not taken for another failure."""
    living = False
    for pod in pods:
        ended = pod["status"]["phase"] in ("Succeeded", "Failed")
        if "deletionTimestamp" not in pod["metadata"] and not (ended and keep_ended):
            store.delete(pod)
            living = True
    if living:
        status["version"] = status.get("version", 0) + 1
    _count(status, pods)


def _count(status: Object, pods: list[Object]) -> None:
    phases = [
        "terminating" if "deletionTimestamp" in pod["metadata"] else pod["status"]["phase"].lower()
        for pod in pods
    ]
    for name in ("pending", "running", "succeeded", "failed", "terminating"):
        status[name] = phases.count(name)


def _make(store: Store, job: Object, status: Object, pods: list[Object]) -> None:
    """Make the Service and the pods that lack, and delete those that there are too many of."""
    metadata = job["metadata"]
    if not store.get("v1", "Service", metadata["namespace"], metadata["name"]):
        selector = {"volcano.sh/job-name": metadata["name"]}
        own: Object = {"name": metadata["name"], "namespace": metadata["namespace"]}
        body = {"apiVersion": "v1", "kind": "Service"}
        spec = {"clusterIP": "None", "selector": selector}
        own["ownerReferences"] = [reference(job)]
        store.create(body | {"metadata": own, "spec": spec})
    there = {pod["metadata"]["name"] for pod in pods}
    wanted = {task["name"]: task["replicas"] for task in job["spec"]["tasks"]}
    for pod in pods:
        known = {k.removeprefix("volcano.sh/"): v for k, v in pod["metadata"]["labels"].items()}
        over = int(known["task-index"]) >= wanted[known["task-spec"]]
        if over and "deletionTimestamp" not in pod["metadata"]:
            store.delete(pod)
    for task in job["spec"]["tasks"]:
        for index in range(task["replicas"]):
            pod = _pod(job, task, index, status.get("version", 0))
            if pod["metadata"]["name"] not in there:
                try:
                    store.create(pod)
                except Refusal as refusal:
                    store.event(job, "FailedCreate", refusal.message, kind="Warning")


def _pod(job: Object, task: Object, index: int, version: int) -> Object:
    template = copy.deepcopy(task["template"])
    own, name = template.get("metadata", {}), job["metadata"]["name"]
    pod = f"{name}-{task['name']}-{index}"
    known = {
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
        "volcano.sh/job-name": name,
    }
    more = {
        "volcano.sh/job-version": str(version),
        "scheduling.k8s.io/group-name": f"{name}-{job['metadata']['uid']}",
    }
    space = {"volcano.sh/job-namespace": job["metadata"]["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod,
            "namespace": job["metadata"]["namespace"],
            "labels": own.get("labels", {}) | known | space,
            "annotations": own.get("annotations", {}) | known | more,
            "ownerReferences": [reference(job)],
        },
        "spec": template["spec"] | {"hostname": pod, "subdomain": name},
        "status": {"phase": "Pending"},
    }
