"""The job file's model: which keys there are, what each may hold, and its JSON Schema.

Unknown keys are refused. Rules between keys are the plan's business (`k8s/plan/make.py`).

    render.py --schema > job.schema.json
"""

import typing
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from k8s.base import names
from k8s.base.model import Count, DnsLabel, Image, Key, LabelValue, Model, Positive, Subdomain
from k8s.jobfile.code import Code
from k8s.jobfile.env import EnvFrom, EnvVar, check_environment
from k8s.jobfile.nccl import Nccl
from k8s.jobfile.pod_patch import PodPatch
from k8s.jobfile.resources import Resources
from k8s.jobfile.run import Run
from k8s.jobfile.scheduling import Scheduling
from k8s.jobfile.services import Metrics, Network, TensorBoard
from k8s.jobfile.volumes import CheckpointVolume, DataVolume, Volume, check_volumes

# Where the pod and the container have the data, the checkpoints and the job file.
DATA = "/data"
OUT = "/out"
JOB_FILE = "/etc/muster"

# What a job of a matrix has in the cluster, for those who look for it and for `submit`.
MATRIX = "muster/matrix"  # label of its objects and pods: the name of the job file
MAX_PARALLEL = "muster/max-parallel"  # annotation of the job object


class Elastic(Model):
    """Nodes come and go between these numbers, and the job goes on with those there are."""

    min: int = Field(ge=1, description="fewest nodes that train")
    max: int = Field(ge=1, le=10_000, description="most nodes")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        if self.max < self.min:
            raise ValueError(f"max={self.max} is less than min={self.min}")
        return self


def _kind_of_nodes(value: Any) -> str:
    return "<elastic>" if isinstance(value, (dict, Elastic)) else "<fixed>"


Nodes = Annotated[
    Annotated[int, Field(ge=1, le=10_000), Tag("<fixed>")] | Annotated[Elastic, Tag("<elastic>")],
    Discriminator(_kind_of_nodes),
]


class Faults(Model):
    """What happens when something fails. Seconds, where it is about time."""

    max_restarts: Count = Field(3, description="counted failures that are retried")
    restarts: Literal["ranks", "node"] = Field(
        "node",
        description="what is restarted when a rank fails. ranks: the ranks of all nodes, in place, "
        "maxRestarts times before a node ends; an elastic job always does so. node: the node ends, and "
        "the job's controller restarts what it restarts",
    )
    deadline: Positive | None = Field(None, description="the job is stopped after this time")
    ttl: Count | None = Field(None, description="a job that ended is deleted after")
    grace_period: Positive = Field(
        120, description="between SIGTERM and SIGKILL; the checkpoint is saved within it"
    )
    suspend: bool = Field(False, description="made, but not started until it is unsuspended")
    clean_pod_policy: Literal["All", "Running", "None"] | None = Field(
        None, description="which pods a PyTorchJob deletes when it ends (default: Running)"
    )


class Matrix(Model):
    """Keys as `--set` takes them, each with a list of values: a job for each combination."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1)]]

    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        [], description="combinations to leave out: each one that has all values of an item"
    )
    max_parallel: Positive | None = Field(
        None,
        description="how many jobs may be in the cluster at a time; `submit` holds the others back, so "
        "it must wait (--wait or --follow)",
    )


_KUEUE = {
    "kueue.x-k8s.io/queue-name": "scheduling.queue",
    "kueue.x-k8s.io/priority-class": "scheduling.priority",
}


def _not_reserved(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if key in _KUEUE:
            raise ValueError(f"labels.{key}: set {_KUEUE[key]} instead")
        domain = key.rpartition("/")[0]
        if domain == "app.kubernetes.io" or domain.endswith("batch.kubernetes.io"):
            raise ValueError(f"labels.{key}: set by muster or a controller; choose another key")
    return labels


def _section(model: type[Model], description: str) -> Any:
    """Return a field whose default is a model with its own defaults."""
    return Field(default_factory=model.model_construct, description=description)


class JobSpec(Model):
    """A training job."""

    name: Annotated[str, AfterValidator(names.job_name)] = Field(
        description="the job's name, from which every object's is made"
    )
    namespace: DnsLabel | None = Field(
        None, description="namespace of every object (default: the one kubectl is set to)"
    )
    launcher: str = Field("job", description="what runs it: a folder's name in k8s/launchers")
    image: Image | None = Field(
        None, description="the trainer's image; every launcher but local needs it"
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="when the image is pulled (default: Kubernetes' own, by the tag)"
    )
    image_pull_secrets: list[Subdomain] = Field(
        [], description="names of Secrets for the image's registry"
    )
    service_account: Subdomain | None = Field(
        None,
        description="the pods' ServiceAccount, e.g. one that a cloud lets read a bucket; its token for "
        "the cluster's own API stays out",
    )
    nodes: Nodes = Field(1, description="machines, or pods; {min, max}: as many as there are")
    procs_per_node: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="ranks per node (default: one per GPU, else one); 0, with run.command: one process, "
        "which starts the others itself",
    )
    matrix: Matrix | None = Field(
        None,
        description="several jobs from this file: keys as --set takes them, each with a list of values, "
        "e.g. {trainer.lr: [0.01, 0.03], trainer.seed: [0, 1]}; a job for each combination",
    )
    resources: Resources = _section(Resources, "what one node has")
    nccl: Nccl = _section(Nccl, "how GPUs of several nodes talk")
    trainer: dict[str, str | bool | int | float | None] = Field(
        {}, description="what is trained and how: the TRAINER_* settings in lower camel case"
    )
    run: Run | None = Field(
        None, description="a script, module or command of your own, in place of `trainer`"
    )
    env: list[EnvVar] = Field([], description="more environment variables")
    env_from: list[EnvFrom] = Field(
        [], description="ConfigMaps and Secrets whose every key is a variable"
    )
    code: Code | None = Field(
        None,
        description="code for the task or the script: from git, or a folder that travels along",
    )
    setup: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="bash commands that each pod runs before the trainer, in the trainer's image and at "
        "/code; the first that fails fails the pod. What pip installs, in an image that has it, is "
        "there for the trainer",
    )
    data: DataVolume | None = Field(None, description=f"the data set, mounted at {DATA}")
    checkpoints: CheckpointVolume | None = Field(
        None, description=f"the run folder, mounted at {OUT} (default: lost with the pod)"
    )
    volumes: list[Volume] = Field([], description="more folders for the trainer")
    mount_job_file: bool = Field(
        False, description=f"the job file itself, in a ConfigMap, at {JOB_FILE}/job.yaml"
    )
    network: Network = _section(Network, "whom the pods may talk to")
    metrics: Metrics | None = Field(None, description="a port of every pod that Prometheus reads")
    tensorboard: TensorBoard | None = Field(
        None, description="TensorBoard over the run folder: a Deployment and a Service"
    )
    disruption_budget: bool = Field(
        False, description="no voluntary eviction takes a pod that the job needs"
    )
    app_wrapper: bool = Field(
        False, description="all objects in one AppWrapper, which queues, restarts and deletes them"
    )
    scheduling: Scheduling = _section(Scheduling, "where and when the pods run")
    faults: Faults = _section(Faults, "what happens when something fails")
    labels: Annotated[dict[Key, LabelValue], AfterValidator(_not_reserved)] = Field(
        {}, description="labels of every object and pod"
    )
    annotations: dict[Key, str] = Field({}, description="annotations of every object and pod")

    pod_patch: PodPatch = _section(
        PodPatch, "a strategic merge into the pod, for what has no key here; applied last"
    )

    @property
    def matrix_name(self) -> str | None:
        """The name of the job file whose matrix this job is of."""
        return self.labels.get(MATRIX)

    @property
    def most_nodes(self) -> int:
        return self.nodes if isinstance(self.nodes, int) else self.nodes.max

    @property
    def least_nodes(self) -> int:
        return self.nodes if isinstance(self.nodes, int) else self.nodes.min

    @model_validator(mode="after")
    def _check_lists(self) -> typing.Self:
        check_environment(self.env, for_run=self.run is not None)
        check_volumes(self.volumes)
        return self
