"""The plan: what a job file amounts to on one launcher. Pure arithmetic and rules between keys.

Everything a template writes is settled and checked here, before it costs a second of GPU time.

    render.py job.yaml --plan
"""

from collections.abc import Iterator
from dataclasses import dataclass

from k8s import patch, quantity, storage
from k8s.launchers import Launcher, RunsIn
from k8s.names import LONGEST
from k8s.scheduling import Scheduled, schedule
from k8s.spec import JobSpec, label, settings_of
from trainer.contract import DEFAULT_PORT
from trainer.environment import environment_of, variable
from trainer.exits import Exit, Fault
from trainer.settings import Settings
from trainer.sizing import Sizing, size

# Of the grace period, what the entrypoint keeps for itself: to hear the signal, to end its ranks'
# processes, to close the rendezvous.
MARGIN = 10

_DEFAULT_SHM = 2**30
_LARGEST_DEFAULT_SHM = 32 * 2**30
_MEBI = 2**20

_LABELS = {"app.kubernetes.io/name": "muster", "app.kubernetes.io/component": "trainer"}


@dataclass(frozen=True)
class Plan:
    """A job on one launcher. `data` and `out` are paths as the trainer sees them."""

    name: str
    launcher: str
    image: str | None
    metadata: dict[str, object]
    job_metadata: dict[str, object]  # of the object that a queue holds back
    labels: dict[str, str]
    annotations: dict[str, str]
    nodes: int
    procs: int
    sizing: Sizing
    master: str
    port: int
    longest_host: str
    gpu: int
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
    suspend: bool
    pod_patch: patch.PodPatch
    mounts: tuple[storage.Mount, ...]
    scheduled: Scheduled
    data: str | None
    out: str
    host_data: str | None  # on this machine; None with `data` set: the caller must say
    host_out: str
    warnings: tuple[str, ...]


def make(spec: JobSpec, launcher: Launcher) -> Plan:
    """Settle a job for a launcher. Raises Fault(64), its text beginning with the key's path."""
    if spec.image is None and launcher.runs_in is not RunsIn.PROCESS:
        raise Fault(
            Exit.CONFIG,
            f"image: missing; launcher {launcher.name} runs it, e.g. image: ghcr.io/me/trainer:1.0",
        )
    launcher.refuse(spec)
    settings = settings_of(spec)
    procs = _procs(spec)
    sizing = size(settings, spec.nodes * procs, label=label)
    shm, shm_bytes = _shm(spec)
    requests, limits = _resources(spec)
    data, host_data = storage.data(spec, settings)
    out, host_out = storage.out(spec, settings, launcher)
    scheduled = schedule(spec.scheduling, spec.name)
    labels = {
        **_LABELS,
        "app.kubernetes.io/instance": spec.name,
        "app.kubernetes.io/managed-by": "muster",
        **spec.labels,
    }
    return Plan(
        name=spec.name,
        launcher=launcher.name,
        image=spec.image,
        metadata=_metadata(spec, labels),
        job_metadata=_metadata(spec, labels | scheduled.labels),
        labels=labels,
        annotations=spec.annotations,
        nodes=spec.nodes,
        procs=procs,
        sizing=sizing,
        master=launcher.master(spec.name),
        port=DEFAULT_PORT,
        longest_host=_longest_host(spec, launcher),
        gpu=spec.resources.gpu,
        requests=requests,
        limits=limits,
        shm=shm,
        shm_bytes=shm_bytes,
        grace=spec.faults.grace_period,
        shutdown=_shutdown(spec.faults.grace_period),
        max_restarts=spec.faults.max_restarts,
        deadline=spec.faults.deadline,
        ttl=spec.faults.ttl,
        environment=_environment(spec, settings, procs, launcher),
        references={
            one.name: one.value_from.model_dump(by_alias=True, exclude_defaults=True)
            for one in spec.env
            if one.value_from is not None
        },
        needed=tuple(one.name for one in spec.env if one.value_from and not one.optional),
        env_from=tuple(
            one.model_dump(by_alias=True, exclude_defaults=True) for one in spec.env_from
        ),
        pull_policy=spec.image_pull_policy,
        pull_secrets=tuple(spec.image_pull_secrets),
        suspend=spec.faults.suspend,
        pod_patch=spec.pod_patch,
        mounts=tuple(storage.mounts(spec, shm)),
        scheduled=scheduled,
        data=data,
        out=out,
        host_data=host_data,
        host_out=host_out,
        warnings=(*_warnings(spec, procs, launcher), *launcher.check(spec)),
    )


def _procs(spec: JobSpec) -> int:
    gpu, procs = spec.resources.gpu, spec.procs_per_node
    if procs is None:
        return gpu or 1
    if gpu and procs > gpu:
        raise Fault(
            Exit.CONFIG,
            f"procsPerNode={procs}: more ranks than the {gpu} of resources.gpu, and two on one GPU "
            f"hinder each other; {gpu} would do",
        )
    return procs


def _shm(spec: JobSpec) -> tuple[str, int]:
    """Return the size of /dev/shm as text and in bytes; memory holds it and must hold more."""
    memory, text = spec.resources.memory, spec.resources.shm
    if text is None and memory is None:
        return quantity.binary(_DEFAULT_SHM), _DEFAULT_SHM
    if text is None:
        quarter = quantity.size(memory or "") // 4
        count = min(quarter // _MEBI * _MEBI or quarter or 1, _LARGEST_DEFAULT_SHM)
        return quantity.binary(count), count
    count = quantity.size(text)
    if memory is not None and quantity.size(memory) <= count:
        raise Fault(
            Exit.CONFIG,
            f"resources.memory={memory!r}: must be more than resources.shm, {text}, which is counted "
            f"in it; {quantity.binary(2 * count)} would do",
        )
    return text, count


def _resources(spec: JobSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Return requests and limits: no limit on CPU, which would only throttle; memory the same."""
    resources = spec.resources
    requests = {"cpu": resources.cpu, "memory": resources.memory}
    limits = {"memory": resources.memory}
    if resources.gpu:
        requests[resources.gpu_resource] = limits[resources.gpu_resource] = str(resources.gpu)
    return _given(requests), _given(limits)


def _given(texts: dict[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}


def _shutdown(grace: int) -> int:
    if grace <= MARGIN:
        raise Fault(
            Exit.CONFIG,
            f"faults.gracePeriod={grace}: the entrypoint needs {MARGIN} s of it, which leaves none to "
            f"save a checkpoint; {MARGIN + 20} would do",
        )
    return grace - MARGIN


def _longest_host(spec: JobSpec, launcher: Launcher) -> str:
    """Return the longest name that is made of the job's: every host's is checked by the longest."""
    nodes = sorted({0, min(1, spec.nodes - 1), spec.nodes - 1})
    host = max((launcher.host(spec.name, node) for node in nodes), key=len)
    longest = max(spec.name, host + launcher.pod_suffix, key=len)
    if len(longest) > LONGEST:
        fits = len(spec.name) - (len(longest) - LONGEST)
        raise Fault(
            Exit.CONFIG,
            f"name={spec.name!r}: makes the name {longest}, {len(longest)} characters where {LONGEST} "
            f"are allowed; a job name of at most {fits} would do",
        )
    return max(spec.name, host, key=len)


def _metadata(spec: JobSpec, labels: dict[str, str]) -> dict[str, object]:
    metadata: dict[str, object] = {"name": spec.name}
    if spec.namespace is not None:
        metadata["namespace"] = spec.namespace
    metadata["labels"] = labels
    if spec.annotations:
        metadata["annotations"] = spec.annotations
    return metadata


def _environment(
    spec: JobSpec, settings: Settings, procs: int, launcher: Launcher
) -> dict[str, str]:
    """Return the variables that are the same on every node; the paths and PET_* are a template's."""
    paths = (variable("data"), variable("out"))
    environment = {k: v for k, v in environment_of(settings).items() if k not in paths}
    if launcher.runs_in is not RunsIn.PROCESS:
        environment["HOME"] = "/tmp"  # noqa: S108  # the only writable folder that is the pod's own
    if launcher.runs_in is RunsIn.POD and spec.resources.cpu is not None:
        # Only a request, which the entrypoint cannot see: it would count the whole machine's cores.
        threads = max(1, int(quantity.cores(spec.resources.cpu) / procs))
        environment["OMP_NUM_THREADS"] = str(threads)
    for one in spec.env:
        environment.pop(one.name, None)
        if one.value is not None:
            environment[one.name] = one.value
    return environment


def _warnings(spec: JobSpec, procs: int, launcher: Launcher) -> Iterator[str]:
    gpu = spec.resources.gpu
    if procs < gpu:
        yield f"procsPerNode: {gpu - procs} of {gpu} GPUs per node have no rank"
    if launcher.runs_in is not RunsIn.PROCESS and _is_latest(spec.image or ""):
        yield f"image: {spec.image} is another image tomorrow; name a version, or better a digest"
    if launcher.runs_in is not RunsIn.POD:
        return
    yield from patch.warnings(spec.pod_patch)
    kept = spec.checkpoints
    if kept is None or kept.empty_dir is not None:
        yield "checkpoints: kept in the pod only; a pod that is replaced starts over at step 0"
    for key, volume in (("data", spec.data), ("checkpoints", kept)):
        if volume is not None and volume.host_path is not None:
            yield (
                f"{key}.hostPath: each machine has its own, user 65532 needs access to it, and Pod "
                "Security baseline forbids it"
            )
    if kept is not None and kept.pvc is not None and spec.nodes > 1:
        yield f"checkpoints.pvc: {spec.nodes} pods mount it, so it must be ReadWriteMany"
    if spec.resources.memory is None:
        yield "resources.memory: not given; such pods are the first to be evicted"
    if spec.faults.deadline is None and spec.nodes > 1 and "faults.deadline" not in launcher.lacks:
        yield "faults.deadline: not given; a job whose pods never all start is retried for ever"


def _is_latest(image: str) -> bool:
    """Say whether an image is not pinned: by the tag `latest`, or by none."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and tag in ("", "latest")
