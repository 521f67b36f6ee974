"""A program of the user's own (`run`) and code that travels: rules between keys, and the environment.

render.py k8s/jobs/13-own-script.yaml --plan
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

from k8s.base.errors import config_error
from k8s.jobfile.code import ARCHIVE, CODE
from k8s.jobfile.spec import OUT, JobSpec
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import Carried, Payload


def check(spec: JobSpec, launcher: Launcher) -> None:
    """Refuse keys that do not go together. Raises Fault(64)."""
    if spec.run is not None and spec.trainer:
        raise config_error(
            "run: replaces our trainer, so nothing reads `trainer`; leave out one of run and trainer"
        )
    if spec.procs_per_node == 0:
        if spec.run is None or spec.run.command is None:
            raise config_error(
                "procsPerNode=0: only with run.command, for a program that starts the ranks "
                "itself; leave it out, or set the number of ranks"
            )
        together = launcher.runs_in in (RunsIn.PROCESS, RunsIn.CONTAINER)
        if together and spec.most_nodes > 1:
            raise config_error(
                f"procsPerNode=0: launcher {launcher.name} runs all nodes as one, so the "
                f"{spec.most_nodes} processes would be on the same node; set nodes=1"
            )


def environment(spec: JobSpec, launcher: Launcher, payload: Payload) -> dict[str, str]:
    """Return what the launcher must know about the program and the code."""
    found = dict(spec.run.environment) if spec.run is not None else {}
    # On this machine without a container the folder itself is used.
    if payload.code is not None and launcher.runs_in is not RunsIn.PROCESS:
        found["MUSTER_CODE"] = archive_of(spec, launcher, payload.code)
        found["MUSTER_CODE_SHA256"] = payload.code.sha256
        found["MUSTER_CODE_FOLDER"] = CODE
    commit = commit_of(spec, payload)
    if commit is not None and launcher.runs_in is not RunsIn.PROCESS:
        found["MUSTER_CODE_COMMIT"] = commit
    return found


def claim_of(spec: JobSpec, launcher: Launcher) -> str | None:
    """Return the claim that the folder is copied to, if it travels so. Raises Fault(64) without one."""
    if spec.code is None or spec.code.via != "pvc" or launcher.runs_in is not RunsIn.POD:
        return None
    found = spec.code.pvc or (spec.checkpoints and spec.checkpoints.pvc)
    if not found:
        raise config_error(
            "code.via='pvc': no claim to copy the folder to; name an existing one in code.pvc or "
            "checkpoints.pvc"
        )
    return found


def archive_of(spec: JobSpec, launcher: Launcher, code: Carried) -> str:
    """Return where a pod or container has the archive of the folder."""
    claim = claim_of(spec, launcher)
    if claim is None:
        return ARCHIVE
    # A claim that is mounted already is not mounted twice.
    kept = spec.checkpoints is not None and spec.checkpoints.pvc == claim
    place = OUT if kept else posixpath.dirname(ARCHIVE)
    return f"{place}/.muster-code/{spec.name}/{code.sha256}.tar.gz"


def commit_of(spec: JobSpec, payload: Payload) -> str | None:
    """Return the commit of the code, where it is known: the folder's, or the one of code.revision."""
    if spec.code is not None and re.fullmatch(r"[0-9a-f]{40}", spec.code.revision or ""):
        return spec.code.revision
    return payload.commit


def annotations(spec: JobSpec, payload: Payload) -> dict[str, str]:
    """Return the job's annotations about its code, which `status` shows."""
    found = {"muster/code-commit": commit_of(spec, payload)}
    found["muster/code-sha256"] = payload.code.sha256 if payload.code is not None else None
    return {name: value for name, value in found.items() if value is not None}


def warnings(spec: JobSpec, launcher: Launcher) -> Iterator[str]:
    """Yield warnings about the program, and about a folder that travels on a claim."""
    if spec.run is not None and spec.run.script is None and spec.procs_per_node != 0:
        yield from starts_ranks(spec.run.words)
    if (claim := claim_of(spec, launcher)) is None or spec.code is None:
        return
    yield (
        f"code.via: `python -m k8s submit` copies code.tar.gz, which -o DIR writes, to claim {claim}; "
        "`kubectl apply` does not"
    )
    if spec.code.pvc is not None and spec.most_nodes > 1:
        yield f"code.pvc: {spec.most_nodes} pods mount it, so it must be ReadWriteMany"


# Also within a shell's line; `pip install deepspeed` there starts nothing.
_STARTS_RANKS = re.compile(
    r"(?:^|[\s;&|/(])(torchrun|torch\.distributed\.(?:run|launch)|accelerate(?= launch)|"
    r"colossalai(?= run)|deepspeed(?= -| \S+\.py))\s"
)


def starts_ranks(words: Sequence[str]) -> Iterator[str]:
    """Yield a warning if a command starts the ranks of its node itself: each rank would do so."""
    if found := _STARTS_RANKS.search(" ".join(words)):
        yield (
            f"run: {found[1]} starts the ranks itself: set procsPerNode: 0 with run.command, or run "
            "its script directly"
        )


def working_folder(spec: JobSpec) -> str | None:
    """Return where the launcher starts, if not where the image says; it unpacks what travels itself."""
    from_git = spec.run is not None and spec.code is not None and not spec.code.travels
    return CODE if from_git else None


def beside(spec: JobSpec, launcher: Launcher, payload: Payload) -> tuple[Carried, ...]:
    """Return the files that must stand beside a machine's script or compose file, or a manifest."""
    if launcher.runs_in is RunsIn.POD:
        return (payload.code,) if payload.code and claim_of(spec, launcher) else ()
    in_container = launcher.runs_in is not RunsIn.PROCESS
    return tuple(one for one in payload.files if in_container or one is payload.launcher)
