"""The plan's data: a job on one launcher, as templates and reports read it."""

import base64
import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from k8s.jobfile import code
from k8s.jobfile.pod_patch import PodPatch
from k8s.jobfile.scheduling import Scheduled
from trainer.config.settings import Settings
from trainer.plan.sizing import Sizing

LAUNCHER = "/muster/launch.pyz"  # where a pod or container has the launcher that travels


@dataclass(frozen=True)
class Identity:
    """Names and labels. `root_metadata` is of the job or its AppWrapper, with the queue's labels."""

    metadata: dict[str, Any]
    root_metadata: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]  # of the pods


@dataclass(frozen=True)
class Size:
    """`nodes` is the largest number of nodes, `min_nodes` the smallest, `procs` the ranks of each."""

    nodes: int
    min_nodes: int
    elastic: bool
    procs: int


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes meet: host `master` and `port`. `longest_host` is a node's longest host name."""

    master: str
    port: int
    longest_host: str


@dataclass(frozen=True)
class NodeResources:
    """What a node has, all of it in `requests`. `shm` is the size of /dev/shm, also in bytes."""

    gpu: int
    gpu_memory: int | None
    rdma: bool
    requests: dict[str, str]
    limits: dict[str, str]
    shm: str
    shm_bytes: int


@dataclass(frozen=True)
class Container:
    """The trainer's container, and the init containers (`steps`) before it."""

    image: str | None
    pull_policy: str | None
    pull_secrets: tuple[str, ...]
    service_account: str | None
    environment: dict[str, str]
    references: dict[str, dict[str, object]]  # variables whose value a cluster looks up
    needed: tuple[str, ...]  # those of them that must be set to run on this machine
    env_from: tuple[dict[str, object], ...]
    steps: tuple[code.Step, ...]


@dataclass(frozen=True)
class Mount:
    """A volume of the pod: `source` is Kubernetes' own description of it.

    `inside`: it is mounted in the trainer's container, and not only in an init container. `carried` is
    the name of the file in it that travels with the job.
    """

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False
    sub_path: str | None = None
    inside: bool = True
    carried: str | None = None


@dataclass(frozen=True)
class Storage:
    """`data` and `out` are paths as the trainer sees them, `host_data` and `host_out` on this machine.

    `host_data` is None with `data` set where the user must give it.
    """

    data: str | None
    out: str
    host_data: str | None
    host_out: str
    mounts: tuple[Mount, ...]


@dataclass(frozen=True)
class Lifetime:
    """Seconds, where it is about time. `shutdown` is the part of `grace` in which ranks may save."""

    grace: int
    shutdown: int
    max_restarts: int
    deadline: int | None
    ttl: int | None
    suspend: bool
    clean_pod_policy: str
    restart_ranks: bool


@dataclass(frozen=True)
class Carried:
    """A file that travels with the job, in a ConfigMap whose name has the hash of the file."""

    role: str
    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def suffix(self) -> str:
        return f"-{self.role}-{self.sha256[:10]}"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()


@dataclass(frozen=True)
class Payload:
    """What travels with the job. `folder` is where the code is on this machine, `commit` git's there."""

    launcher: Carried | None = None
    code: Carried | None = None
    folder: str = ""
    commit: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Carried, ...]:
        return tuple(one for one in (self.launcher, self.code) if one is not None)


@dataclass(frozen=True)
class Extra:
    """An object made with the job: its template, the suffix of its name, and its values."""

    template: str
    suffix: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A job on one launcher. `sizing` is for the largest number of nodes, None without our trainer.

    `program` is what the launcher is given to run, nothing for our trainer, and `working_folder` where.
    What travels is in ConfigMaps on a cluster; on a machine it is `beside` the file.
    """

    name: str
    launcher: str
    settings: Settings
    sizing: Sizing | None
    program: tuple[str, ...]
    working_folder: str | None
    payload: Payload
    beside: tuple[Carried, ...]
    identity: Identity
    size: Size
    rendezvous: Rendezvous
    resources: NodeResources
    container: Container
    storage: Storage
    lifetime: Lifetime
    scheduled: Scheduled
    extras: tuple[Extra, ...]
    metrics_port: int | None
    app_wrapper: bool
    pod_patch: PodPatch
    warnings: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """Return the container's command for a program of the user's own."""
        return ["python3", LAUNCHER, *self.program]

    @property
    def probe(self) -> list[str]:
        """Return the command of the liveness probe."""
        if not self.program:
            return ["python", "-m", "trainer.health"]
        # -I: a package of the user's own may be named trainer too.
        code = f"import sys; sys.path.insert(0, {LAUNCHER!r}); from trainer import health"
        return ["python3", "-I", "-c", f"{code}; sys.exit(health.main())"]

    @property
    def ranks(self) -> int:
        """Return the world size with the most nodes."""
        return self.size.nodes * self.size.procs

    @property
    def job_metadata(self) -> dict[str, Any]:
        return self.identity.metadata if self.app_wrapper else self.identity.root_metadata

    @property
    def suspend_job(self) -> bool:
        """Whether the job itself is suspended, and not the AppWrapper around it."""
        return self.lifetime.suspend and not self.app_wrapper

    @property
    def selector(self) -> dict[str, str]:
        """Labels that only the pods of this job have."""
        keys = ("app.kubernetes.io/instance", "app.kubernetes.io/component")
        return {key: self.identity.labels[key] for key in keys}

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by their names, without the groups, for --plan --json."""
        found: dict[str, Any] = {}
        groups = ("identity", "size", "rendezvous", "resources", "container", "storage", "lifetime")
        for name, value in asdict(self).items():
            found |= value if name in groups else {name: value}
        del found["payload"], found["beside"]  # files
        found["carried"] = {one.name: one.sha256 for one in self.payload.files}
        return found
