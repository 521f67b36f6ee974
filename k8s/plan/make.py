"""The plan: what a job file amounts to on one launcher. Pure arithmetic and rules between keys.

Everything a template writes is settled and checked here, before it costs a second of GPU time.

    render.py job.yaml --plan
"""

from collections.abc import Iterator

from k8s.base import quantity
from k8s.base.names import LONGEST
from k8s.jobfile import code, pod_patch, resources, services
from k8s.jobfile.scheduling import schedule
from k8s.jobfile.spec import DATA, JobSpec
from k8s.jobfile.validate import label, settings_of
from k8s.plan import environment, extras, storage
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import Extra, Plan
from trainer.config.contract import DEFAULT_PORT
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan.sizing import Sizing, size

# Of the grace period, what the entrypoint keeps for itself: to hear the signal, to end its ranks'
# processes, to close the rendezvous.
MARGIN = 10

_LABELS = {"app.kubernetes.io/name": "muster", "app.kubernetes.io/component": "trainer"}


def make(spec: JobSpec, launcher: Launcher) -> Plan:
    """Settle a job for a launcher. Raises Fault(64), its text beginning with the key's path."""
    if spec.image is None and launcher.runs_in is not RunsIn.PROCESS:
        raise Fault(
            Exit.CONFIG,
            f"image: missing; launcher {launcher.name} runs it, e.g. image: ghcr.io/me/trainer:1.0",
        )
    launcher.refuse(spec)
    settings = settings_of(spec)
    procs = resources.ranks(spec.resources, spec.procs_per_node)
    sizing = _size(spec, settings, procs)
    shm, shm_bytes = resources.shm(spec.resources)
    requests, limits = resources.amounts(spec.resources)
    data, host_data = storage.data(spec, settings)
    out, host_out = storage.out(spec, settings, launcher)
    scheduled = schedule(spec.scheduling, spec.name)
    beside = tuple(extras.of(spec)) if launcher.runs_in is RunsIn.POD else ()
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
        held_metadata=_metadata(spec, labels | scheduled.labels),
        labels=labels,
        annotations=storage.annotations(spec)
        | services.annotations(spec.network)
        | spec.annotations,
        nodes=spec.most_nodes,
        min_nodes=spec.least_nodes,
        elastic=not isinstance(spec.nodes, int),
        procs=procs,
        settings=settings,
        sizing=sizing,
        master=launcher.master(spec),
        port=DEFAULT_PORT,
        longest_host=_longest_host(spec, launcher, beside),
        gpu=spec.resources.gpu,
        gpu_memory=quantity.size(spec.resources.gpu_memory) if spec.resources.gpu_memory else None,
        rdma=bool(spec.resources.rdma),
        requests=requests,
        limits=limits,
        shm=shm,
        shm_bytes=shm_bytes,
        grace=spec.faults.grace_period,
        shutdown=_shutdown(spec, settings),
        max_restarts=spec.faults.max_restarts,
        deadline=spec.faults.deadline,
        ttl=spec.faults.ttl,
        environment=environment.of(spec, settings, launcher, procs=procs, out=out),
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
        service_account=spec.service_account,
        held=spec.faults.suspend,
        clean_pod_policy=spec.faults.clean_pod_policy or "Running",
        steps=tuple(
            code.steps(
                code=spec.code,
                pull=spec.data.pull if spec.data else None,
                setup=spec.setup,
                image=spec.image or "",
                data=DATA,
            )
        ),
        extras=beside,
        metrics_port=spec.metrics.port if spec.metrics else None,
        app_wrapper=spec.app_wrapper,
        pod_patch=spec.pod_patch,
        mounts=tuple(storage.mounts(spec, shm)),
        scheduled=scheduled,
        data=data,
        out=out,
        host_data=host_data,
        host_out=host_out,
        warnings=(*_warnings(spec, procs, launcher), *launcher.check(spec)),
    )


def _size(spec: JobSpec, settings: Settings, procs: int) -> Sizing:
    """Return the sizing with the most nodes. Raises Fault(64) if any number of them does not fit."""
    for nodes in range(spec.least_nodes, spec.most_nodes):
        try:
            size(settings, nodes * procs, label=label, uneven=True)
        except Fault as fault:
            among = f"{spec.least_nodes} to {spec.most_nodes}"
            raise Fault(fault.code, f"{fault} (with {nodes} of nodes' {among})") from None
    uneven = spec.least_nodes != spec.most_nodes
    return size(settings, spec.most_nodes * procs, label=label, uneven=uneven)


def _shutdown(spec: JobSpec, settings: Settings) -> int:
    grace = spec.faults.grace_period
    left, allowed = grace - MARGIN, settings.checkpoint_timeout
    if left <= 0:
        raise Fault(
            Exit.CONFIG,
            f"faults.gracePeriod={grace}: the entrypoint needs {MARGIN} s of it, which leaves none to "
            f"save a checkpoint; {MARGIN + 20} would do",
        )
    if "checkpointTimeout" in spec.trainer and allowed > left:
        # Its default only tells a stuck disk from a slow one.
        raise Fault(
            Exit.CONFIG,
            f"trainer.checkpointTimeout={allowed}: a checkpoint may take longer than the {left} s that "
            f"faults.gracePeriod={grace} leaves it, and is lost then; set faults.gracePeriod="
            f"{allowed + MARGIN}",
        )
    return left


def _longest_host(spec: JobSpec, launcher: Launcher, beside: tuple[Extra, ...] = ()) -> str:
    """Return the longest name that is made of the job's: every host's is checked by the longest."""
    nodes = sorted({0, min(1, spec.most_nodes - 1), spec.most_nodes - 1})
    host = max((launcher.host(spec, node) for node in nodes), key=len)
    others = [spec.name + one.suffix for one in beside]
    longest = max(spec.name, host + launcher.pod_suffix, *others, key=len)
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


def _warnings(spec: JobSpec, procs: int, launcher: Launcher) -> Iterator[str]:
    on_cluster = launcher.runs_in is RunsIn.POD
    if launcher.runs_in is not RunsIn.PROCESS and _is_latest(spec.image or ""):
        yield f"image: {spec.image} is another image tomorrow; name a version, or better a digest"
    if not on_cluster:
        return
    yield from resources.warnings(spec.resources, procs)
    yield from pod_patch.warnings(spec.pod_patch)
    yield from code.warnings(spec.code)
    yield from storage.warnings(spec)
    yield from extras.warnings(spec)
    no_deadline = spec.faults.deadline is None and "faults.deadline" not in launcher.lacks
    if no_deadline and spec.most_nodes > 1:
        yield "faults.deadline: not given; a job whose pods never all start is retried for ever"


def _is_latest(image: str) -> bool:
    """Say whether an image is not pinned: by the tag `latest`, or by none."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and tag in ("", "latest")
