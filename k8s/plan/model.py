"""The plan's data: what a job file amounts to on one launcher, as templates and reports read it."""

from dataclasses import dataclass
from typing import Any

from k8s.jobfile import code
from k8s.jobfile.pod_patch import PodPatch
from k8s.jobfile.scheduling import Scheduled
from trainer.config.settings import Settings
from trainer.plan.sizing import Sizing


@dataclass(frozen=True)
class Extra:
    """An object beside the job: its template, what its name adds to the job's, and its values."""

    template: str
    suffix: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Mount:
    """A volume of the pod: `source` is Kubernetes' own description of it.

    `inside`: the trainer's container has it, and not only a step before it.
    """

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False
    sub_path: str | None = None
    inside: bool = True


@dataclass(frozen=True)
class Plan:
    """A job on one launcher. `data` and `out` are paths as the trainer sees them.

    `nodes` is the most there can be, `min_nodes` the fewest that train; `sizing` is with the most.
    """

    name: str
    launcher: str
    image: str | None
    metadata: dict[str, object]
    held_metadata: dict[str, object]  # of the object that a queue holds back
    labels: dict[str, str]
    annotations: dict[str, str]  # of the pods
    nodes: int
    min_nodes: int
    elastic: bool
    procs: int
    settings: Settings
    sizing: Sizing
    master: str
    port: int
    longest_host: str
    gpu: int
    gpu_memory: int | None
    rdma: bool
    requests: dict[str, str]
    limits: dict[str, str]
    shm: str
    shm_bytes: int
    grace: int
    shutdown: int
    max_restarts: int
    deadline: int | None
    ttl: int | None
    environment: dict[str, str]
    references: dict[str, dict[str, object]]  # variables whose value a cluster looks up
    needed: tuple[str, ...]  # those of them that a machine's caller must have set
    env_from: tuple[dict[str, object], ...]
    pull_policy: str | None
    pull_secrets: tuple[str, ...]
    service_account: str | None
    held: bool
    clean_pod_policy: str
    steps: tuple[code.Step, ...]
    extras: tuple[Extra, ...]
    metrics_port: int | None
    app_wrapper: bool
    pod_patch: PodPatch
    mounts: tuple[Mount, ...]
    scheduled: Scheduled
    data: str | None
    out: str
    host_data: str | None  # on this machine; None with `data` set: the caller must say
    host_out: str
    warnings: tuple[str, ...]

    @property
    def job_metadata(self) -> dict[str, object]:
        return self.metadata if self.app_wrapper else self.held_metadata

    @property
    def suspend(self) -> bool:
        """Whether the job itself is held back, and not the AppWrapper around it."""
        return self.held and not self.app_wrapper

    @property
    def selector(self) -> dict[str, str]:
        """Labels that the pods of this job have and no others."""
        keys = ("app.kubernetes.io/instance", "app.kubernetes.io/component")
        return {key: self.labels[key] for key in keys}
