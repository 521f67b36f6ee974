"""Make the plan: a job file on one launcher. Arithmetic and rules between keys, no I/O.

All values that a template writes are computed and checked here.

    render.py job.yaml --plan
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic import BaseModel

from k8s.base import quantity
from k8s.base.errors import config_error
from k8s.base.names import LONGEST
from k8s.jobfile import code, pod_patch, resources, services
from k8s.jobfile.scheduling import Scheduled, schedule
from k8s.jobfile.spec import DATA, JobSpec
from k8s.jobfile.validate import label, settings_of
from k8s.plan import extras, own_program, storage
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import (
    Container,
    Extra,
    Identity,
    Lifetime,
    NodeResources,
    Payload,
    Plan,
    Rendezvous,
    Size,
)
from k8s.plan.node_environment import build_environment
from trainer.config.catalogue import find_task, task_names
from trainer.config.contract import DEFAULT_PORT
from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.plan.sizing import Sizing, size

# Seconds of the grace period that the entrypoint needs itself: to receive the signal, to end the ranks'
# processes, to close the rendezvous.
MARGIN = 10


def make(spec: JobSpec, launcher: Launcher, payload: Payload) -> Plan:
    """Plan a job for a launcher. Raises Fault(64), its text beginning with the key's path."""
    if spec.image is None and launcher.runs_in is not RunsIn.PROCESS:
        raise config_error(
            f"image: missing; launcher {launcher.name} needs it, e.g. image: ghcr.io/me/trainer:1.0"
        )
    launcher.refuse(spec)
    if spec.faults.suspend and spec.scheduling.queue is not None:
        raise config_error(
            "faults.suspend=True: Kueue starts a queued job when there is quota; leave out one of "
            "faults.suspend and scheduling.queue"
        )
    own_program.check(spec, launcher)
    settings = settings_of(spec) if spec.run is None else Settings()
    procs = resources.ranks(spec.resources, spec.procs_per_node)
    node = _node_resources(spec)
    places = storage.plan_storage(spec, settings, launcher, shm=node.shm, payload=payload)
    _check_data(settings, launcher, places.data)
    environment = build_environment(spec, settings, launcher, procs=procs, out=places.out)
    environment |= own_program.environment(spec, launcher, payload)
    scheduled = schedule(spec.scheduling, spec.name)
    on_cluster = launcher.runs_in is RunsIn.POD
    objects = tuple(extras.extra_objects(spec, launcher, payload)) if on_cluster else ()
    return Plan(
        name=spec.name,
        launcher=launcher.name,
        settings=settings,
        sizing=_size(spec, settings, procs) if spec.run is None else None,
        program=spec.run.words if spec.run is not None else (),
        working_folder=own_program.working_folder(spec),
        payload=payload,
        beside=own_program.beside(spec, launcher, payload),
        identity=_identity(spec, scheduled, own_program.annotations(spec, payload)),
        size=Size(
            nodes=spec.most_nodes,
            min_nodes=spec.least_nodes,
            elastic=not isinstance(spec.nodes, int),
            procs=procs,
        ),
        rendezvous=Rendezvous(
            master=launcher.master(spec),
            port=DEFAULT_PORT,
            longest_host=_longest_host(spec, launcher, objects),
        ),
        resources=node,
        container=_container(spec, environment),
        storage=places,
        lifetime=Lifetime(
            grace=spec.faults.grace_period,
            shutdown=_shutdown(spec, settings),
            max_restarts=spec.faults.max_restarts,
            deadline=spec.faults.deadline,
            ttl=spec.faults.ttl,
            suspend=spec.faults.suspend,
            clean_pod_policy=spec.faults.clean_pod_policy or "Running",
            restart_ranks=spec.faults.restarts == "ranks",
        ),
        scheduled=scheduled,
        extras=objects,
        metrics_port=spec.metrics.port if spec.metrics else None,
        app_wrapper=spec.app_wrapper,
        pod_patch=spec.pod_patch,
        warnings=(
            *_warnings(spec, procs, launcher),
            *own_program.warnings(spec, launcher),
            *launcher.check(spec),
            *payload.warnings,
        ),
    )


def _node_resources(spec: JobSpec) -> NodeResources:
    asked = spec.resources
    shm, shm_bytes = resources.shm(asked)
    requests, limits = resources.amounts(asked)
    return NodeResources(
        gpu=asked.gpu,
        gpu_memory=quantity.size(asked.gpu_memory) if asked.gpu_memory else None,
        rdma=bool(asked.rdma),
        requests=requests,
        limits=limits,
        shm=shm,
        shm_bytes=shm_bytes,
    )


def _identity(spec: JobSpec, scheduled: Scheduled, about_code: dict[str, str]) -> Identity:
    labels = {
        "app.kubernetes.io/name": "muster",
        "app.kubernetes.io/component": "trainer",
        "app.kubernetes.io/instance": spec.name,
        "app.kubernetes.io/managed-by": "muster",
        **spec.labels,
    }
    annotations = storage.annotations_for_volumes(spec) | services.annotations(spec.network)
    return Identity(
        metadata=_metadata(spec, labels, spec.annotations),
        root_metadata=_metadata(spec, labels | scheduled.labels, about_code | spec.annotations),
        labels=labels,
        annotations=annotations | spec.annotations,
    )


def _container(spec: JobSpec, environment: dict[str, str]) -> Container:
    steps = code.steps(
        code=spec.code,
        pull=spec.data.pull if spec.data else None,
        setup=spec.setup,
        image=spec.image or "",
        data=DATA,
    )
    dump = partial(BaseModel.model_dump, by_alias=True, exclude_defaults=True)
    return Container(
        image=spec.image,
        pull_policy=spec.image_pull_policy,
        pull_secrets=tuple(spec.image_pull_secrets),
        service_account=spec.service_account,
        environment=environment,
        references={one.name: dump(one.value_from) for one in spec.env if one.value_from},
        needed=tuple(one.name for one in spec.env if one.value_from and not one.optional),
        env_from=tuple(dump(one) for one in spec.env_from),
        steps=tuple(steps),
    )


def _check_data(settings: Settings, launcher: Launcher, data: str | None) -> None:
    """Raise Fault(64) when a built-in task in a pod or container would look for data that no key mounts.

    For processes on this machine the variable TRAINER_DATA may still give it.
    """
    needs = settings.task in task_names() and find_task(settings.task).needs_data
    if needs and data is None and launcher.runs_in is not RunsIn.PROCESS:
        raise config_error(
            f"trainer.task={settings.task!r}: needs its data set; set data to the volume that "
            "has it, e.g. data: {pvc: my-claim}"
        )


def _size(spec: JobSpec, settings: Settings, procs: int) -> Sizing:
    """Return the sizing with the most nodes. Raises Fault(64) if any number of them does not fit."""
    uneven = spec.least_nodes != spec.most_nodes
    if uneven and settings.mesh:
        raise config_error(
            f"trainer.mesh={settings.mesh!r}: has a fixed number of ranks, but nodes may be "
            f"{spec.least_nodes} to {spec.most_nodes}; leave it out"
        )
    for nodes in range(spec.least_nodes, spec.most_nodes):
        try:
            size(settings, nodes * procs, label=label, uneven=True)
        except Fault as fault:
            among = f"nodes may be {spec.least_nodes} to {spec.most_nodes}"
            raise Fault(fault.code, f"{fault} (with {nodes} nodes; {among})") from None
    return size(settings, spec.most_nodes * procs, label=label, uneven=uneven)


def _shutdown(spec: JobSpec, settings: Settings) -> int:
    grace = spec.faults.grace_period
    left, allowed = grace - MARGIN, settings.checkpoint_timeout
    if left <= 0:
        raise config_error(
            f"faults.gracePeriod={grace}: the launcher needs {MARGIN} s of it, so no time is left to "
            f"save a checkpoint; use e.g. {MARGIN + 20}"
        )
    if "checkpointTimeout" in spec.trainer and allowed > left:
        # The default only separates a stuck disk from a slow one.
        raise config_error(
            f"trainer.checkpointTimeout={allowed}: more than the {left} s that "
            f"faults.gracePeriod={grace} leaves to save a checkpoint, so it may be lost; set "
            f"faults.gracePeriod={allowed + MARGIN}"
        )
    return left


def _longest_host(spec: JobSpec, launcher: Launcher, objects: tuple[Extra, ...]) -> str:
    """Return the longest host name. Raises Fault(64) when a name made from the job's is too long."""
    nodes = sorted({0, min(1, spec.most_nodes - 1), spec.most_nodes - 1})
    host = max((launcher.host(spec, node) for node in nodes), key=len)
    others = [spec.name + one.suffix for one in objects]
    longest = max(spec.name, host + launcher.pod_suffix, *others, key=len)
    if len(longest) > LONGEST:
        fits = len(spec.name) - (len(longest) - LONGEST)
        raise config_error(
            f"name={spec.name!r}: leads to the name {longest} of {len(longest)} characters, but "
            f"{LONGEST} are allowed; use at most {fits}"
        )
    return max(spec.name, host, key=len)


def _metadata(spec: JobSpec, labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    found = {
        "name": spec.name,
        "namespace": spec.namespace,
        "labels": labels,
        "annotations": annotations,
    }
    return {key: value for key, value in found.items() if value}


def _warnings(spec: JobSpec, procs: int, launcher: Launcher) -> Iterator[str]:
    if launcher.runs_in is not RunsIn.PROCESS and _is_latest(spec.image or ""):
        yield f"image: {spec.image} may change at any time; use a version or, better, a digest"
    if launcher.runs_in is not RunsIn.POD:
        return
    yield from resources.warnings(spec.resources, procs)
    yield from pod_patch.warnings(spec.pod_patch)
    yield from code.warnings(spec.code)
    yield from storage.warnings(spec)
    yield from extras.warnings(spec)
    no_deadline = spec.faults.deadline is None and "faults.deadline" not in launcher.lacks
    if no_deadline and spec.most_nodes > 1:
        yield "faults.deadline: not set; a job whose pods never all start is retried forever"


def _is_latest(image: str) -> bool:
    """Return whether an image is not pinned: no digest, and no tag or the tag `latest`."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and tag in ("", "latest")
