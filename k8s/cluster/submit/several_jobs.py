"""Submit several jobs, such as those of a matrix, together: all or none, with a limit on running jobs.

submit_all(cluster, {file: read_manifests(file) for file in files}, wanted)
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from k8s.base.errors import config_error
from k8s.cluster import jobs
from k8s.cluster.client.api import Cluster, Object
from k8s.cluster.observe import logs
from k8s.cluster.submit import one_job
from k8s.cluster.submit.one_job import Submission
from k8s.jobfile.spec import MAX_PARALLEL
from k8s.plan.job_kind import State
from trainer.config.exits import Exit, Fault, combine

log = logging.getLogger("k8s")


@dataclass(frozen=True)
class Wanted:
    """What to do with the jobs: `wait` for their ends, `show` each line of their logs until then.

    `replace` first deletes existing jobs of their names.
    `on_change` takes the prefix of messages about the job, empty for a single job, and its new state.
    """

    wait: bool
    show: Callable[[str], object] | None
    on_change: Callable[[str, State], None]
    force: bool
    replace: bool


def submit_all(cluster: Cluster, files: dict[Path, list[Object]], wanted: Wanted) -> Exit:
    """Submit the job of each file and return their combined exit code; it is 0 without waiting.

    The server checks all objects before the first is applied. With several jobs, one that has ended is
    not run again, but its exit code counts: an interrupted call can be repeated. Raises Fault(64).
    """
    if len(files) == 1:
        return _submit_one(cluster, *next(iter(files.items())), wanted)
    found = [one_job.find(cluster, file, manifests) for file, manifests in files.items()]
    most = min(map(_max_parallel, found))
    _check(found, most, wanted)
    found = [
        one_job.make_room(cluster, one) if wanted.replace or one.is_being_deleted else one
        for one in found
    ]
    left = [one for one in found if not one.has_ended]
    for one in found:
        one_job.try_out(cluster, one, force=wanted.force)
        if one.before is not None and one.has_ended:
            log.info("job %s already exists and has ended (%s)", one.name, one.before.state.phase)
    if not wanted.wait:
        for one in left:
            one_job.apply(cluster, one, force=wanted.force)
            log.info("submitted %s", one.name)
        return Exit.DONE
    before = [_end_of(cluster, one, wanted) for one in found if one.has_ended]
    # First the jobs that already run: they count towards the limit.
    left.sort(key=lambda one: one.before is None)
    return combine([*before, *_in_turn(cluster, left, min(most, len(left)), wanted)])


def _submit_one(cluster: Cluster, file: Path, manifests: list[Object], wanted: Wanted) -> Exit:
    name = one_job.submit(cluster, file, manifests, force=wanted.force, replace=wanted.replace)
    log.info("submitted %s", name)
    if wanted.show:
        logs.follow(cluster, jobs.get_job(cluster, name), wanted.show, query={"follow": "true"})
    if not wanted.wait:
        return Exit.DONE
    return jobs.wait(cluster, name, timeout=None, on_change=partial(wanted.on_change, ""))


def _check(found: list[Submission], most: int, wanted: Wanted) -> None:
    """Refuse what cannot be submitted together, before any job is deleted. Raises Fault(64)."""
    first: dict[str, Path] = {}
    for one in found:
        if one.name in first:
            raise config_error(
                f"{one.file}: job {one.name} is also in {first[one.name]}; submit one of them"
            )
        first[one.name] = one.file
    to_run = [one for one in found if wanted.replace or not one.has_ended]
    if not to_run:
        raise config_error(
            f"all {len(found)} jobs already exist and have ended; delete those that should run again"
        )
    if len(to_run) > most and not wanted.wait:
        raise config_error(
            f"matrix.maxParallel={most}: {len(to_run)} jobs cannot all run at the same time; add --wait "
            "or --follow"
        )


def _max_parallel(one: Submission) -> int:
    text = (one.root["metadata"].get("annotations") or {}).get(MAX_PARALLEL)
    if text is None:
        return 2**31
    if not str(text).isdecimal() or int(text) < 1:
        raise config_error(f"job {one.name}: annotation {MAX_PARALLEL}={text!r}: must be 1 or more")
    return int(text)


def _in_turn(cluster: Cluster, left: list[Submission], most: int, wanted: Wanted) -> list[int]:
    """Run the jobs, at most `most` at a time, each in a thread, and return their exit codes."""
    waiting: SimpleQueue[Submission] = SimpleQueue()
    ends: SimpleQueue[int | BaseException | None] = SimpleQueue()
    for one in left:
        waiting.put(one)

    def follow() -> None:
        try:
            while _run_next(cluster, waiting.get_nowait(), wanted, ends):
                pass
        except Empty:
            pass
        except BaseException as error:  # noqa: BLE001  # raised below
            ends.put(error)
        ends.put(None)

    for number in range(most):
        # A daemon, so that an interrupt ends at once: the jobs continue in the cluster.
        threading.Thread(target=follow, name=f"follow {number}", daemon=True).start()
    codes: list[int] = []
    running = most
    while running:
        end = ends.get()
        if isinstance(end, BaseException):
            raise end
        running -= end is None
        codes += [] if end is None else [end]
    if held_back := waiting.qsize():
        log.error("%d jobs were not submitted; submit again to continue", held_back)
    return codes


def _run_next(
    cluster: Cluster,
    one: Submission,
    wanted: Wanted,
    ends: "SimpleQueue[int | BaseException | None]",
) -> bool:
    """Run a job to its end; return whether the thread may start another."""
    try:
        one_job.apply(cluster, one, force=wanted.force)
        log.info("submitted %s", one.name)
        if show := wanted.show:
            job = jobs.get_job(cluster, one.name)
            line = f"[{one.name}] "
            logs.follow(cluster, job, lambda text: show(line + text), query={"follow": "true"})
        ends.put(_end_of(cluster, one, wanted))
    except Fault as fault:
        log.error("%s: %s (exit %d)", one.name, fault, fault.code)  # noqa: TRY400  # one line
        ends.put(fault.code)
        return fault.code != Exit.PEER  # after Exit.PEER the job may still be running
    return True


def _end_of(cluster: Cluster, one: Submission, wanted: Wanted) -> int:
    on_change = partial(wanted.on_change, f"{one.name}: ")
    code = jobs.wait(cluster, one.name, timeout=None, on_change=on_change)
    log.info("%s: exit %d", one.name, code)
    return code
