"""The job file's model: which keys there are, what each may hold, and its JSON Schema.

Unknown keys are refused. Rules between keys are the plan's business (`k8s/plan/make.py`).

    render.py --schema > job.schema.json
"""

import typing
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from k8s.base import names
from k8s.base.model import (
    Count,
    DnsLabel,
    Image,
    Key,
    LabelValue,
    Model,
    Positive,
    Scalar,
    Subdomain,
)
from k8s.jobfile import services
from k8s.jobfile.code import Code
from k8s.jobfile.env import EnvFrom, EnvVar, check_environment
from k8s.jobfile.nccl import TOPOLOGY, Nccl
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
    """Nodes may join and leave within these limits."""

    min: int = Field(ge=1, description="the smallest number of nodes")
    max: int = Field(ge=1, le=10_000, description="the largest number of nodes")

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
    """What happens when something fails. Times are in seconds."""

    max_restarts: Count = Field(3, description="how many counted failures are retried")
    restarts: Literal["ranks", "node"] = Field(
        "node",
        description="what is restarted when a rank fails. ranks: the ranks of all nodes, in the same "
        "pods, up to maxRestarts times before a node ends; elastic jobs always do this. node: the node "
        "ends, and the job's controller restarts pods",
    )
    deadline: Positive | None = Field(None, description="seconds after which the job is stopped")
    ttl: Count | None = Field(None, description="seconds until an ended job is deleted")
    grace_period: Positive = Field(
        120,
        description="seconds between SIGTERM and SIGKILL; all but the last 10 are for saving",
    )
    suspend: bool = Field(False, description="create the job suspended; not with scheduling.queue")
    clean_pod_policy: Literal["All", "Running", "None"] | None = Field(
        None, description="which pods a PyTorchJob deletes when it ends (default: Running)"
    )


class Matrix(Model):
    """Keys as `--set` takes them, each with a list of values: a job for each combination."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1)]]

    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        [],
        description="combinations to leave out: each that has all the values of one item here",
    )
    max_parallel: Positive | None = Field(
        None,
        description="the most jobs in the cluster at a time; `submit` applies the next when one ends, "
        "so it needs --wait or --follow",
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
        description="the job's name; the names of all objects start with it"
    )
    namespace: DnsLabel | None = Field(
        None, description="namespace of every object (default: kubectl's current namespace)"
    )
    launcher: str = Field("job", description="the kind of job: a folder in k8s/launchers")
    image: Image | None = Field(
        None, description="the trainer's image; all launchers except local need it"
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="when the image is pulled (default: Kubernetes decides by the tag)"
    )
    image_pull_secrets: list[Subdomain] = Field(
        [], description="names of Secrets for the image's registry"
    )
    service_account: Subdomain | None = Field(
        None,
        description="the pods' ServiceAccount, e.g. one that a cloud allows to read a bucket; the token "
        "for the Kubernetes API is not mounted",
    )
    nodes: Nodes = Field(1, description="number of machines or pods; {min, max}: an elastic job")
    procs_per_node: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="ranks per node (default: one per GPU, or 1); 0, only with run.command: one "
        "process, which starts the ranks itself",
    )
    matrix: Matrix | None = Field(
        None,
        description="several jobs from this file, one for each combination of values: keys as in --set, "
        "each with a list of values, e.g. {trainer.lr: [0.01, 0.03], trainer.seed: [0, 1]}",
    )
    resources: Resources = _section(Resources, "what one node has")
    nccl: Nccl = _section(Nccl, "how GPUs of different nodes communicate")
    trainer: dict[str, Scalar] = Field(
        {}, description="what is trained and how: the TRAINER_* settings in lower camel case"
    )
    run: Run | None = Field(
        None, description="your own script, module or command, instead of `trainer`"
    )
    env: list[EnvVar] = Field([], description="more environment variables")
    env_from: list[EnvFrom] = Field(
        [], description="ConfigMaps and Secrets whose every key is a variable"
    )
    code: Code | None = Field(
        None,
        description="code of the task or script: from git, or a folder that travels with the job",
    )
    setup: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="bash commands that each pod runs before the trainer, in the trainer's image "
        "at /code; if one fails, the pod fails. With pip in the image, "
        "`pip install` makes packages available to the trainer",
    )
    data: DataVolume | None = Field(None, description=f"the data set, mounted at {DATA}")
    checkpoints: CheckpointVolume | None = Field(
        None, description=f"the run folder, mounted at {OUT} (default: lost with the pod)"
    )
    volumes: list[Volume] = Field([], description="more folders for the trainer")
    mount_job_file: bool = Field(
        False, description=f"mount the job file, from a ConfigMap, at {JOB_FILE}/job.yaml"
    )
    network: Network = _section(Network, "what the pods may connect to")
    metrics: Metrics | None = Field(None, description="a port of every pod that Prometheus scrapes")
    tensorboard: TensorBoard | None = Field(
        None, description="TensorBoard for the run folder: a Deployment and a Service"
    )
    disruption_budget: bool = Field(
        False, description="no voluntary eviction of a pod that the job needs"
    )
    app_wrapper: bool = Field(
        False,
        description="one AppWrapper for all objects, which queues, restarts and deletes them",
    )
    scheduling: Scheduling = _section(Scheduling, "where and when the pods run")
    faults: Faults = _section(Faults, "what happens when something fails")
    labels: Annotated[dict[Key, LabelValue], AfterValidator(_not_reserved)] = Field(
        {}, description="labels of every object and pod"
    )
    annotations: dict[Key, str] = Field({}, description="annotations of every object and pod")

    pod_patch: PodPatch = _section(
        PodPatch, "a strategic merge patch of the pod, for what has no key here; applied last"
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
        check_volumes(self.volumes, [TOPOLOGY] if self.nccl.topology else [])
        services.check_annotations(self.annotations, self.network)
        return self
