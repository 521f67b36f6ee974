"""Where the data set and the run folder are: in the pod, on this machine, and as volumes.

render.py job.yaml --plan
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from k8s.launchers import Launcher, RunsIn
from k8s.spec import DATA, OUT, JobSpec
from trainer.exits import Exit, Fault
from trainer.settings import Settings


@dataclass(frozen=True)
class Mount:
    """A volume of the pod: `source` is Kubernetes' own description of it."""

    name: str
    source: dict[str, object]
    path: str
    read_only: bool = False


def data(spec: JobSpec, settings: Settings) -> tuple[str | None, str | None]:
    """Return where the data is: as the trainer sees it, and on this machine."""
    wanted = str(settings.data) if settings.data else None
    if spec.data is None:
        return wanted, wanted
    inside = wanted or DATA
    if not PurePosixPath(inside).is_relative_to(DATA):
        raise Fault(
            Exit.CONFIG,
            f"trainer.data={inside!r}: must be within {DATA}, where `data` is mounted; leave it out, "
            f"or write {DATA}/FOLDER",
        )
    host = spec.data.host_path
    return inside, host and str(PurePosixPath(host) / PurePosixPath(inside).relative_to(DATA))


def out(spec: JobSpec, settings: Settings, launcher: Launcher) -> tuple[str, str]:
    """Return the run folder: as the trainer sees it, and on this machine."""
    wanted = settings.out and PurePosixPath(settings.out)
    inside = wanted or PurePosixPath(OUT) / spec.name
    if not inside.is_relative_to(OUT):
        if launcher.runs_in is RunsIn.PROCESS:
            return str(inside), str(inside)
        raise Fault(
            Exit.CONFIG,
            f"trainer.out={str(inside)!r}: must be within {OUT}, all else is read-only or lost; "
            f"leave it out, or write {OUT}/FOLDER",
        )
    if spec.checkpoints and spec.checkpoints.host_path:
        return str(inside), str(PurePosixPath(spec.checkpoints.host_path) / inside.relative_to(OUT))
    folder = "run" if launcher.runs_in is RunsIn.PROCESS else launcher.name
    return str(inside), f"build/{spec.name}/{folder}"


def mounts(spec: JobSpec, shm: str) -> Iterator[Mount]:
    yield Mount("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shm}}, "/dev/shm")  # noqa: S108
    yield Mount("tmp", {"emptyDir": {}}, "/tmp")  # noqa: S108
    if spec.data is not None:
        yield Mount("data", _source(spec.data.pvc, spec.data.host_path), DATA, read_only=True)
    kept = spec.checkpoints
    if kept is None:
        yield Mount("out", {"emptyDir": {}}, OUT)
    elif kept.empty_dir is not None:
        yield Mount("out", {"emptyDir": {"sizeLimit": kept.empty_dir}}, OUT)
    else:
        yield Mount("out", _source(kept.pvc, kept.host_path), OUT)


def _source(claim: str | None, folder: str | None) -> dict[str, object]:
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim}}
    return {"hostPath": {"path": folder, "type": "Directory"}}
