"""The paths of the data set and the run folder, in the pod and on this machine, and the pod's volumes.

render.py job.yaml --plan
"""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from k8s.base.errors import config_error
from k8s.jobfile import nccl
from k8s.jobfile.code import ARCHIVE, CODE
from k8s.jobfile.spec import DATA, JOB_FILE, OUT, JobSpec
from k8s.jobfile.volumes import Claim, Csi
from k8s.plan import own_program
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import LAUNCHER, Mount, Payload, Storage
from trainer.config.settings import Settings


def plan_storage(
    spec: JobSpec, settings: Settings, launcher: Launcher, *, shm: str, payload: Payload
) -> Storage:
    """Return the paths and volumes of a job. Raises Fault(64)."""
    data, host_data = _data(spec, settings)
    out, host_out = _out(spec, settings, launcher)
    return Storage(data, out, host_data, host_out, tuple(_mounts(spec, launcher, shm, payload)))


def _data(spec: JobSpec, settings: Settings) -> tuple[str | None, str | None]:
    """Return the path of the data set: as the trainer sees it, and on this machine."""
    wanted = str(settings.data) if settings.data else None
    if spec.data is None:
        return wanted, wanted
    inside = wanted or DATA
    if not _is_within(PurePosixPath(inside), DATA):
        raise config_error(
            f"trainer.data={inside!r}: must be within {DATA}, where `data` is mounted; leave it out, "
            f"or write {DATA}/FOLDER"
        )
    host = spec.data.host_path
    return inside, host and str(PurePosixPath(host) / PurePosixPath(inside).relative_to(DATA))


def _out(spec: JobSpec, settings: Settings, launcher: Launcher) -> tuple[str, str]:
    """Return the run folder: as the trainer sees it, and on this machine."""
    in_process = launcher.runs_in is RunsIn.PROCESS
    inside = PurePosixPath(settings.out or f"{OUT}/{spec.name}")
    if not _is_within(inside, OUT):
        if in_process:
            return str(inside), str(inside)
        raise config_error(
            f"trainer.out={str(inside)!r}: must be within {OUT}, since other folders are read-only or "
            f"lost; leave it out, or write {OUT}/FOLDER"
        )
    if spec.checkpoints and spec.checkpoints.host_path:
        return str(inside), str(PurePosixPath(spec.checkpoints.host_path) / inside.relative_to(OUT))
    if spec.matrix_name is not None:  # a run's name is its folder's, and they are compared
        runs = "runs" if in_process else f"{launcher.name}-runs"
        return str(inside), f"build/{spec.matrix_name}/{runs}/{spec.name}"
    return str(inside), f"build/{spec.name}/{'run' if in_process else launcher.name}"


def _is_within(path: PurePosixPath, folder: str) -> bool:
    return path.is_relative_to(folder) and ".." not in path.parts


def _mounts(spec: JobSpec, launcher: Launcher, shm: str, payload: Payload) -> Iterator[Mount]:
    """Yield the pod's volumes. Raises Fault(64) for one that only one node can mount."""
    yield Mount("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shm}}, "/dev/shm")  # noqa: S108
    yield Mount("tmp", {"emptyDir": {}}, "/tmp")  # noqa: S108
    if spec.data is not None and spec.data.pull is not None:
        yield Mount("data", {"emptyDir": {"sizeLimit": spec.data.pull.size}}, DATA)
    elif spec.data is not None:
        yield Mount("data", volume_source(spec, spec.data, "data"), DATA, read_only=True)
    if spec.checkpoints is None:
        yield Mount("out", {"emptyDir": {}}, OUT)
    else:
        yield Mount("out", volume_source(spec, spec.checkpoints, "checkpoints"), OUT)
    for index, one in enumerate(spec.volumes):
        source = volume_source(spec, one, f"volumes[{index}]")
        yield Mount(one.name, source, one.path, one.read_only, one.sub_path)
    yield from _own(spec)
    claim = own_program.claim_of(spec, launcher)
    for carried in payload.files:
        file = PurePosixPath(LAUNCHER if carried.role == "launch" else ARCHIVE)
        source = {"configMap": {"name": f"{spec.name}{carried.suffix}"}}
        if carried.role == "code" and claim is not None:
            if not own_program.archive_of(spec, launcher, carried).startswith(str(file.parent)):
                continue  # it is on a claim that is mounted already
            source = {"persistentVolumeClaim": {"claimName": claim}}
        yield Mount(
            f"muster-{carried.role}", source, str(file.parent), read_only=True, carried=file.name
        )


def _own(spec: JobSpec) -> Iterator[Mount]:
    """Yield the volumes that other keys of the job file need."""
    if spec.code is not None or spec.setup:
        yield Mount("code", {"emptyDir": {}}, CODE)
    if spec.code is not None and spec.code.secret is not None:
        # 0440: the pod's user reads it through its group; ssh refuses a key that others can read.
        secret = {"secretName": spec.code.secret, "defaultMode": 0o440}
        yield Mount("git", {"secret": secret}, "", inside=False)
    if spec.code is not None and spec.code.ssh:
        line = {"path": "passwd", "fieldRef": {"fieldPath": f"metadata.annotations['{USER}']"}}
        yield Mount("git-user", {"downwardAPI": {"items": [line]}}, "", inside=False)
    if spec.nccl.topology is not None and spec.resources.gpu:
        source = {"configMap": {"name": spec.nccl.topology.config_map}}
        yield Mount("topology", source, nccl.TOPOLOGY, read_only=True)
    if spec.mount_job_file:
        source = {"configMap": {"name": f"{spec.name}-job-file"}}
        yield Mount("job-file", source, JOB_FILE, read_only=True)


# The annotation with the line of /etc/passwd for the pods' user.
USER = "muster/user"
_USER_LINE = "muster:x:65532:65532::/tmp:/bin/sh\n"


def annotations_for_volumes(spec: JobSpec) -> dict[str, str]:
    """Return the pods' annotations that a volume mounts as files."""
    return {USER: _USER_LINE} if spec.code is not None and spec.code.ssh else {}


def claims(spec: JobSpec) -> dict[str, Claim]:
    """Return the claims that are made with the job, by the suffixes of their names.

    Raises Fault(64) for two claims of one name.
    """
    found: dict[str, Claim] = {}
    if spec.checkpoints is not None and spec.checkpoints.claim is not None:
        found["checkpoints"] = spec.checkpoints.claim
    for index, one in enumerate(spec.volumes):
        if one.claim is not None and found.setdefault(one.name, one.claim) is not one.claim:
            raise config_error(
                f"volumes[{index}].name={one.name!r}: the claim of checkpoints has this "
                "name; choose another"
            )
    return found


def volume_source(spec: JobSpec, volume: Any, key: str) -> dict[str, Any]:
    """Return a volume's source as Kubernetes has it."""
    name = getattr(volume, "name", key)
    match next((kind, value) for kind in _KINDS if (value := getattr(volume, kind, None))):
        case "claim", Claim() as claim:
            _check_claim(spec, claim, key)
            return {"persistentVolumeClaim": {"claimName": f"{spec.name}-{name}"}}
        case "ephemeral", scratch:
            asked: dict[str, Any] = {"accessModes": ["ReadWriteOnce"]}
            if scratch.storage_class is not None:
                asked["storageClassName"] = scratch.storage_class
            asked["resources"] = {"requests": {"storage": scratch.size}}
            return {"ephemeral": {"volumeClaimTemplate": {"spec": asked}}}
        case "csi", Csi() as csi:
            if csi.read_only and key == "checkpoints":
                raise config_error(
                    "checkpoints.csi.readOnly=True: the run is written there; leave it out"
                )
            made: dict[str, Any] = {"driver": csi.driver}
            if csi.read_only:
                made["readOnly"] = True
            if csi.attributes:
                made["volumeAttributes"] = csi.attributes
            if csi.secret is not None:
                made["nodePublishSecretRef"] = {"name": csi.secret}
            return {"csi": made}
        case kind, value:
            return _SOURCES[kind](value)


def _check_claim(spec: JobSpec, claim: Claim, key: str) -> None:
    if spec.app_wrapper:
        raise config_error(
            f"{key}.claim: an AppWrapper deletes it, with what is on it, when the job is suspended, "
            f"preempted or fails; make a claim yourself and set {key}.pvc"
        )
    if claim.access_mode in ("ReadWriteOnce", "ReadWriteOncePod") and spec.most_nodes > 1:
        raise config_error(
            f"{key}.claim.accessMode={claim.access_mode!r}: {spec.most_nodes} pods on several machines "
            "mount it; use ReadWriteMany, or ephemeral for a volume per pod"
        )


_SOURCES: dict[str, Callable[[str], dict[str, Any]]] = {
    "pvc": lambda claim: {"persistentVolumeClaim": {"claimName": claim}},
    "host_path": lambda folder: {"hostPath": {"path": folder, "type": "Directory"}},
    "empty_dir": lambda size: {"emptyDir": {"sizeLimit": size}},
    "config_map": lambda name: {"configMap": {"name": name}},
    "secret": lambda name: {"secret": {"secretName": name}},
}
_KINDS = {*_SOURCES, "claim", "ephemeral", "csi"}


def warnings(spec: JobSpec) -> Iterator[str]:
    """Yield warnings about the volumes and checkpoints."""
    kept = spec.checkpoints
    where = str(spec.trainer.get("checkpoints") or OUT)
    if "://" not in where and not any(
        _is_within(PurePosixPath(where), path) for path in _kept_folders(spec)
    ):
        key = "trainer.checkpoints" if spec.trainer.get("checkpoints") else "checkpoints"
        yield f"{key}: kept only in the pod; a replaced pod starts again at step 0"
    resume = str(spec.trainer.get("resume") or "auto")
    if resume not in ("auto", "force"):
        start = "step 0" if resume == "never" else "that checkpoint"
        yield f"trainer.resume={resume!r}: after each restart the run begins again from {start}"
    volumes: list[tuple[str, Any]] = [("data", spec.data), ("checkpoints", kept)]
    volumes += [(f"volumes[{index}]", one) for index, one in enumerate(spec.volumes)]
    for key, volume in volumes:
        if volume is not None and volume.host_path is not None:
            yield (
                f"{key}.hostPath: each machine has its own folder, user 65532 needs access to it, and "
                "Pod Security baseline forbids it"
            )
    if kept is not None and kept.pvc is not None and spec.most_nodes > 1:
        yield f"checkpoints.pvc: {spec.most_nodes} pods mount it, so it must be ReadWriteMany"
    if kept is not None and kept.claim is not None:
        yield (
            "checkpoints.claim: deleted with the job's other objects, and the checkpoints with it; to "
            "keep them, name your own claim in checkpoints.pvc"
        )


def _kept_folders(spec: JobSpec) -> list[str]:
    """Return the folders of a pod whose content outlives it."""
    found = [one.path for one in spec.volumes if one.empty_dir is None and one.ephemeral is None]
    kept = spec.checkpoints
    return found if kept is None or kept.empty_dir is not None else [*found, OUT]
