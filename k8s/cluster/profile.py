"""Ask a job's ranks for a profile of their next steps: SIGUSR2 to the launcher in each pod.

lines, code = profile(cluster, get_job(cluster, "digits"))
"""

from k8s.base.errors import config_error
from k8s.cluster import jobs
from k8s.cluster.client.api import Cluster, Forbidden
from k8s.cluster.client.exec import execute_in_each
from k8s.cluster.jobs import Job
from k8s.cluster.state import runs_own_program, variables
from trainer.config.exits import PROFILE_SIGNAL, Exit, Fault


def profile(cluster: Cluster, job: Job) -> tuple[list[str], Exit]:
    """Send the signal; return a line for each pod, and 69 when one of them cannot be asked.

    Raises Fault(64) if the job has ended or runs the user's own program, or if the user may not exec.
    """
    asked = jobs.running_containers(cluster, job)
    if any(map(runs_own_program, asked.values())):
        raise config_error(
            f"{cluster.where}: job {job.name} runs its own program; `profile` works only with "
            "muster's trainer"
        )
    # Process 1 of the container is the launcher, or passes the signal on to it.
    command = ["sh", "-c", f"kill -{PROFILE_SIGNAL.name.removeprefix('SIG')} 1"]
    found = execute_in_each(cluster, asked, command)
    lines, code = [], Exit.DONE
    for one in jobs.pods(cluster, job):
        ended = found.get(one.name)
        if isinstance(ended, Forbidden):
            raise ended
        if ended is None:
            lines.append(f"{one.name}: {one.phase}, not asked")
        elif isinstance(ended, Fault) or ended.code:
            text = (
                ended if isinstance(ended, Fault) else f"exit {ended.code}: {ended.output.strip()}"
            )
            lines.append(f"{one.name}: cannot be asked: {text}")
            code = Exit.PEER
        else:
            out = variables(asked[one.name]).get("TRAINER_OUT", "TRAINER_OUT")
            lines.append(f"{one.name}: asked; its ranks write the next 5 steps to {out}/profile")
    return lines, code
