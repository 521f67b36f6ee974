"""Copy a changed code folder into the pods of a running job, and restart its ranks.

lines = sync(cluster, get_job(cluster, "own-script"), Path("own_script"))
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from k8s.base.errors import config_error, in_one_line
from k8s.cluster import jobs
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.client.exec import Ended, execute_in_each
from k8s.cluster.jobs import Job
from k8s.cluster.state import runs_own_program, variables
from k8s.jobfile.code import ARCHIVE
from k8s.plan.model import LAUNCHER, Carried
from k8s.render.archive import pack
from trainer.config.exits import MEANINGS, Exit, Fault

_WAIT = 10.0  # seconds for the ranks to end; it may take longer

# -I, because the user's own code may have a package named trainer too.
_IN_POD = (
    f"import sys; sys.path.insert(0, {LAUNCHER!r}); from trainer.launcher.program import code_sync; "
    "sys.exit(code_sync.main(sys.argv[1:]))"
)

log = logging.getLogger("k8s")


def sync(cluster: Cluster, job: Job, folder: Path) -> Iterator[str]:
    """Pack a folder as it is packed for `submit`, copy it into each pod, and yield what was done.

    All pods have the new code before the first rank is ended. Raises Fault(64) if the job cannot take
    new code, and a Fault if the copy to one pod fails: then no pod uses the new code.
    """
    containers = jobs.running_containers(cluster, job)
    for container in containers.values():
        _check(cluster, job, container, len(containers))
    if not folder.is_dir():
        raise config_error(f"{folder}: no such folder; give the folder of code.path")
    sent = variables(next(iter(containers.values())))["MUSTER_CODE"]
    via = "configMap" if sent == ARCHIVE else "pvc"
    packed = pack(folder, label=str(folder), via=via)
    for name in packed.left_out:
        log.warning("%s looks like a key and is not copied", name)
    code = Carried("code", "code.tar.gz", packed.content)

    def step(*words: str, stdin: bytes = b"") -> dict[str, str]:
        command = ["python3", "-I", "-c", _IN_POD, *words]
        found = execute_in_each(cluster, containers, command, stdin)
        hint = "no pod uses the new code" if words[0] == "put" else "try again"
        return {pod: _output(pod, ended, hint) for pod, ended in found.items()}

    size = str(len(code.content))
    commit = [packed.commit] if packed.commit else []
    done = step("put", size, code.sha256, *commit, stdin=code.content)
    if set(done.values()) == {"same"}:
        yield f"{job.name} already runs this code: {code.sha256}"
        return
    containers = {pod: one for pod, one in containers.items() if done[pod] == "put"}
    step("commit")
    done = step("restart", str(min(_WAIT, cluster.timeout / 2)))
    for pod, word in sorted(done.items()):
        how = (
            "its ranks restart with it"
            if word == "taken"
            else "its ranks restart when they have ended"
        )
        yield f"{pod}: has the code; {how}"
    yield f"{job.name}: code {code.sha256}, {len(code.content) / 1024:.0f} KiB"


def _check(cluster: Cluster, job: Job, container: Object, pods: int) -> None:
    """Refuse a job that cannot take new code. Raises Fault(64), or Fault(69) while a pod is missing."""
    found, what = variables(container), f"{cluster.where}: job {job.name}"
    nodes = found.get("PET_NNODES", "1")
    if "MUSTER_CODE" not in found:
        raise config_error(f"{what} has no code folder; add `code: {{path: .}}` to its job file")
    if not runs_own_program(container):
        raise config_error(
            f"{what} runs muster's trainer, which loads its task once; submit it again"
        )
    if ":" in nodes:
        raise config_error(
            f"{what} is elastic: a pod that joins later would have the old code; submit it again"
        )
    if "PET_MAX_RESTARTS" not in found:
        raise config_error(
            f"{what} restarts whole nodes; set `faults: {{restarts: ranks}}` in its job file"
        )
    if nodes != str(pods):
        raise Fault(Exit.PEER, f"{what}: {pods} of {nodes} pods run; try again when all do")


def _output(pod: str, ended: Ended | Fault, hint: str) -> str:
    """Return the last line that a step wrote. Raises Fault if the step has failed."""
    if isinstance(ended, Forbidden):
        raise ended
    if isinstance(ended, Fault):
        raise Fault(ended.code, f"{ended}; {hint}")
    last = in_one_line((ended.output.strip().splitlines() or [""])[-1])
    if ended.code:
        code = Exit(ended.code) if ended.code in MEANINGS else Exit.CODE
        raise Fault(code, f"{pod}: {last or f'exit {ended.code}'}; {hint}")
    return last
