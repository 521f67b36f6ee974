"""What travels with a job: its code folder and, for the user's own program, the launcher.

render.py k8s/jobs/13-own-script.yaml --plan
"""

import os
import posixpath
from pathlib import Path

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from k8s.plan.model import Carried, Payload
from k8s.render import launch_zip
from k8s.render.archive import Archive, pack

# kubectl apply also keeps the object, in base64, in an annotation of at most 256 KiB.
_CLIENT_SIDE = 180 * 1024


def make_payload(spec: JobSpec, base: Path, output: Path | None = None) -> Payload:
    """Pack what a job carries; `base` is what code.path is relative to. Raises Fault(64).

    `output` is the folder of the renderings, which does not travel.
    """
    launcher = Carried("launch", "launch.pyz", launch_zip.build()) if spec.run is not None else None
    if spec.code is None or not spec.code.travels:
        return Payload(launcher)
    path = spec.code.path or "."
    label = f"code.path={path!r}"
    folder = _folder(path, base, label)
    packed = pack(folder, label=label, via=spec.code.via, output=output)
    if spec.run is not None and spec.run.script is not None:
        _check_script(spec.run.script, packed, folder, label)
    warnings = [
        f"code.path: {name} looks like a key and is not copied; use a Secret"
        for name in packed.left_out
    ]
    if spec.code.via == "configMap" and len(packed.content) > _CLIENT_SIDE:
        warnings.append(
            f"code.path: {len(packed.content) // 1024} KiB when compressed; kubectl apply accepts "
            "this only with --server-side"
        )
    return Payload(
        launcher,
        Carried("code", "code.tar.gz", packed.content),
        folder=str(folder),
        commit=packed.commit,
        warnings=tuple(warnings),
    )


def _folder(path: str, base: Path, label: str) -> Path:
    folder = base / path
    if not os.path.isdir(folder):  # noqa: PTH112  # a name may be too long, where Path.is_dir raises
        raise config_error(f"{label}: no such folder, relative to the job file's")
    if Path(path).is_absolute() or not folder.resolve().is_relative_to(base.resolve()):
        raise config_error(
            f"{label}: outside the job file's folder; put the job file into the folder that travels, or "
            "above it"
        )
    return folder


def _check_script(script: str, packed: Archive, folder: Path, label: str) -> None:
    """Refuse a script that does not travel. An absolute path is a path in the image."""
    if script.startswith("/"):
        return
    root = folder.resolve()
    # A script or a folder above it may be a link. The file that it leads to must travel.
    target = (root / posixpath.normpath(script)).resolve()
    there = target.is_relative_to(root) and os.path.isfile(target)  # noqa: PTH113
    if there and target.relative_to(root).as_posix() in packed.files:
        return
    reason = "exists, but does not travel; see .gitignore" if there else "no such file"
    raise config_error(f"run.script={script!r}: {reason} in {label}")
