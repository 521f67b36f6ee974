"""The PyTorchJob of the training operator as the verbs see it."""

from k8s.plan.job_kind import JobKind, Object, Phase, State, condition, stopped


def _read(job: Object) -> State:
    replicas = (job.get("status", {}).get("replicaStatuses") or {}).values()
    failed = sum(replica.get("failed", 0) for replica in replicas)
    suspend = JOB_KIND.suspend_field
    if state := stopped(job, failed, succeeded=("Succeeded",), suspend_field=suspend):
        return state
    if found := condition(job, "Restarting"):
        return State(Phase.RESTARTING, found.get("message", ""), failed)
    return State(Phase.RUNNING if condition(job, "Running") else Phase.PENDING, restarts=failed)


def _node(pod: Object) -> int | None:
    labels = pod["metadata"].get("labels", {})
    if labels.get("training.kubeflow.org/replica-type") == "master":
        return 0
    index = labels.get("training.kubeflow.org/replica-index", "")
    if not index.isdecimal():
        return None
    containers = pod.get("spec", {}).get("containers", [])
    variables = [one for container in containers for one in container.get("env", [])]
    # Where there is no master, as in an elastic job, the template takes the index for the node's rank.
    alone = any(one["name"] == "PET_NODE_RANK" and "valueFrom" in one for one in variables)
    return int(index) + (0 if alone else 1)


def _elastic(job: Object) -> tuple[int, int] | None:
    policy = job["spec"].get("elasticPolicy")
    return (policy["minReplicas"], policy["maxReplicas"]) if policy else None


JOB_KIND = JobKind(
    launcher="pytorchjob",
    api_version="kubeflow.org/v1",
    kind="PyTorchJob",
    suspend_field=("spec", "runPolicy", "suspend"),
    read=_read,
    label_domains=("kubeflow.org",),
    install={
        "kubeflow.org": "the training operator v1, https://github.com/kubeflow/training-operator"
    },
    node=_node,
    elastic=_elastic,
    node_counts=("/spec/pytorchReplicaSpecs/Worker/replicas",),
)
