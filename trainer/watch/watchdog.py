"""A thread in each rank that reports slow ranks, and ends the run with 69 when a rank never comes.

Each thread looks at its rank's main thread. When that has waited in one collective for
TRAINER_COLLECTIVE_TIMEOUT, all ranks write their stacks and torch's flight recorder to `logs/` of the
run folder. The ranks that do not answer, or are not in a collective, are named; then all end with 69.

    with dump_stacks_after_timeout(settings), join(settings) as runtime: ...
        with watching(settings, runtime, report, imported=time.time()) as watched: ...

The threads talk by the keys of a store, which has its own connection to rank 0's node. N is a rank:

    key       written by                             value            read by
    status/N  every rank, each second                `_status`        rank 0, for stragglers and usage;
                                                                      all, when the run hangs
    hang      the ranks that have waited too long    empty            all, each second
    answer/N  every rank that hangs or reads `hang`  `_status`, and   all that hang, for 5 s
                                                     "issued"
    ended/N   a rank whose run has raised an error   the error's text all that hang, for 5 s
"""

import contextlib
import faulthandler
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import IO, Any, NoReturn

import torch.distributed as dist

from trainer.config.ending import exit_at_once, report_fault
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.messages import from_main
from trainer.distributed.runtime import Runtime, as_fault
from trainer.report.events import Report
from trainer.watch.position import Position, main_position
from trainer.watch.process_start import process_start
from trainer.watch.stacks import write_dump
from trainer.watch.straggler import StragglerDetector, Waits, Work
from trainer.watch.usage import Meter, usage

log = logging.getLogger("trainer")

_LOOK_EVERY = 0.05  # seconds between two looks at the main thread
_STATUS_EVERY = 1.0  # seconds between two statuses in the store
_USAGE_EVERY = 10.0  # seconds between two usage events; more with more than 100 ranks
_SUSPENDED = 5.0  # a look this late: the whole process was suspended, so nobody was waiting
_ANSWER = 5.0  # seconds for the other ranks to write their stacks and answer
_LINGER = 1.0  # rank 0's process may hold the store, which the others still read
_LINES = 200  # looks of which the line is kept
_NAMED = 3  # ranks that a message names


@dataclass
class Watched:
    """The run that is watched. `current_step` and `agreements` are set when its steps begin.

    `agreements` counts how often the ranks have agreed whether to stop: it grows while the run goes on.
    """

    settings: Settings
    runtime: Runtime
    report: Report
    current_step: Callable[[], int] | None = None
    agreements: Callable[[], int] = lambda: 0
    finishing: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def step(self) -> int:
        return self.current_step() if self.current_step else 0

    def finish(self) -> None:
        """Have what was used since the last usage event reported. All ranks call it."""
        self.finishing.set()
        self.finished.wait(_ANSWER)


@dataclass
class _Rank:
    """What the thread has seen of its own rank."""

    meter: Meter
    phases: dict[str, float]
    scratch: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    work: Work = field(default_factory=Work)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    agreements: int = -1
    waiting_since: float = 0.0
    position: Position | None = None

    def update(self, position: Position, now: float, elapsed: float, watched: Watched) -> None:
        """Take in where the main thread is, `elapsed` seconds after the look before."""
        self.position = position
        if elapsed > _SUSPENDED:
            self.waiting_since += elapsed
            return
        begins = position.phase == "compute" and watched.current_step is None
        self.phases["start" if begins else position.phase] += elapsed
        agreements = watched.agreements()
        if not position.waiting or agreements != self.agreements:
            self.agreements, self.waiting_since = agreements, now
        if position.stepping and watched.current_step is not None:
            own = 0.0 if position.waiting else elapsed
            self.work = Work(watched.step, self.work.seconds + elapsed, self.work.own + own)
            if not position.waiting:
                self.lines.append(position.line)


@contextlib.contextmanager
def watching(
    settings: Settings, runtime: Runtime, report: Report, *, imported: float
) -> Iterator[Watched]:
    """Watch the main thread, which runs the block; `imported` is when it had its modules.

    A run of one rank waits for nobody: it only reports its usage.
    """
    faulthandler.cancel_dump_traceback_later()
    watched = Watched(settings, runtime, report)
    store = _store(settings, runtime)
    end = threading.Event()
    before = {"import": imported - process_start(), "join": time.time() - imported}
    arguments = (watched, store, end, _Rank(Meter(runtime.device), defaultdict(float, before)))
    thread = threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True)
    thread.start()
    try:
        yield watched
    except Exception as error:
        end.set()
        thread.join(timeout=_ANSWER)
        with contextlib.suppress(dist.DistError):
            store.set(f"ended/{runtime.rank}", json.dumps(str(as_fault(error))))
        raise
    finally:
        end.set()
        thread.join(timeout=_ANSWER)


def _store(settings: Settings, runtime: Runtime) -> dist.Store:
    if runtime.control is None:
        return dist.HashStore()
    # Two threads must not wait on one connection, so this is not the process group's store.
    return dist.PrefixStore(
        f"watch/{from_main(os.urandom(8).hex(), runtime, str)}",
        dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=settings.collective_timeout),
        ),
    )


def _watch(watched: Watched, store: dist.Store, end: threading.Event, rank: _Rank) -> None:
    """Look at the main thread until `end` is set; end the process when it waits for too long."""
    runtime, is_alone = watched.runtime, watched.runtime.control is None
    detector, for_stragglers = StragglerDetector(), Waits()
    last_look = rank.waiting_since = time.monotonic()
    last_status = last_look - _STATUS_EVERY
    usage_every = max(_USAGE_EVERY, runtime.world_size / 10)
    last_usage, last_statuses = last_look - usage_every, dict[int, Any]()
    while not end.wait(_LOOK_EVERY):
        now = time.monotonic()
        position = main_position(rank.scratch, device=runtime.device.type, is_alone=is_alone)
        if position is not None:
            rank.update(position, now, now - last_look, watched)
        last_look = now
        is_last = watched.finishing.is_set() and not watched.finished.is_set()
        if now - last_status < _STATUS_EVERY and not is_last:
            continue
        last_status = now
        try:
            store.set(f"status/{runtime.rank}", json.dumps(_status(rank)))
            hang = store.check(["hang"])
            if runtime.is_main and not hang:
                statuses = _read(store, "status", runtime.world_size)
                complete = len(statuses) == runtime.world_size
                due = now - last_usage >= (_STATUS_EVERY if is_last else usage_every)
                if watched.current_step and complete and due:
                    used = usage(last_statuses, statuses, for_stragglers)
                    watched.report("usage", step=watched.step, **used)
                    last_usage, last_statuses = now, statuses
                _report_straggler(watched, statuses, detector, now)
        except dist.DistError:  # the store's node is gone; the main thread will fail and report it
            watched.finished.set()
            return
        if is_last:
            watched.finished.set()
        waits = not is_alone and now - rank.waiting_since >= watched.settings.collective_timeout
        if hang or waits:
            _end_hanging_run(watched, store, rank)


def _status(rank: _Rank) -> dict[str, Any]:
    most_common = Counter(rank.lines).most_common(1)
    return {
        "host": socket.gethostname(),
        "work": asdict(rank.work),
        "phases": rank.phases,
        "usually": most_common[0][0] if most_common else "",
        "line": rank.position.line if rank.position else "",
        "waiting": rank.position.waiting if rank.position else False,
        "usage": rank.meter.read(),
    }


def _read(store: dist.Store, kind: str, world_size: int) -> dict[int, Any]:
    """Return the values of the keys `kind`/N that are there, by rank."""
    ranks = [rank for rank in range(world_size) if store.check([f"{kind}/{rank}"])]
    texts = store.multi_get([f"{kind}/{rank}" for rank in ranks]) if ranks else []
    return {rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True)}


def _report_straggler(
    watched: Watched, statuses: dict[int, Any], detector: StragglerDetector, now: float
) -> None:
    work = {rank: Work(**status["work"]) for rank, status in statuses.items()}
    found = detector.update(work, now)
    if found is None:
        return
    host, line = statuses[found.rank]["host"], statuses[found.rank]["usually"]
    watched.report(
        "fault",
        kind="straggler",
        step=watched.step,
        rank=found.rank,
        host=host,
        own_s=found.own,
        median_s=found.median,
        at=line,
    )
    text = (
        f"rank {found.rank} on {host} is slow: {found.own:.3f} s of its own work per step, others "
        f"{found.median:.3f} s, so they wait {found.lost:.0%} of the time; it is mostly at {line}"
    )
    log.warning("%s", text)


def _end_hanging_run(watched: Watched, store: dist.Store, rank: _Rank) -> NoReturn:
    """Write this rank's stacks, name the ranks that did not come, and end the process with 69."""
    number, world_size = watched.runtime.rank, watched.runtime.world_size
    logs = watched.settings.run_folder / "logs"
    answers = {number: _status(rank)}
    try:
        device = watched.runtime.device.type
        answers[number]["issued"] = write_dump(logs, rank=number, device=device)
        store.set("hang", "")
        store.set(f"answer/{number}", json.dumps(answers[number]))
        statuses = _read(store, "status", world_size)
        ended: dict[int, str] = {}
        end = time.monotonic() + _ANSWER
        while len(answers | ended) < world_size and time.monotonic() < end:
            time.sleep(0.1)
            answers |= _read(store, "answer", world_size)
            ended = _read(store, "ended", world_size)
        time.sleep(_LINGER if watched.runtime.is_main else 0)
        cause, missing = _find_missing(answers, statuses, ended, world_size)
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        cause, missing = f"the other ranks could not be asked ({reason})", []
    step = (
        f"step {watched.step + 1}" if watched.current_step else "the start, before the first step,"
    )
    fault = Fault(
        Exit.PEER,
        f"{step} hangs: no progress for {watched.settings.collective_timeout} s "
        f"(TRAINER_COLLECTIVE_TIMEOUT); {cause}; stacks are in {logs}",
    )
    watched.report(
        "fault", kind="hang", step=watched.step, missing=missing, ranks_heard=sorted(answers)
    )
    watched.report("error", code=int(fault.code), message=str(fault))
    exit_at_once(report_fault(fault, None))


def _find_missing(
    answers: dict[int, dict[str, Any]],
    statuses: dict[int, dict[str, Any]],
    ended: dict[int, str],
    world_size: int,
) -> tuple[str, list[int]]:
    """Return why the run hangs, and the ranks that the others wait for."""

    def names(ranks: list[int], known: dict[int, dict[str, Any]]) -> str:
        return ", ".join(
            f"rank {rank} on {known[rank]['host']}, at {known[rank]['line']}"
            if rank in known
            else f"rank {rank}"
            for rank in ranks[:_NAMED]
        )

    silent = [rank for rank in range(world_size) if rank not in answers | ended]
    if silent:  # before those that ended: they may have ended because they lost a silent one
        return f"no sign of life from {names(silent, statuses)}", silent
    if ended:
        errors = ", ".join(f"rank {rank} ({ended[rank]})" for rank in sorted(ended)[:_NAMED])
        return f"others have ended: {errors}", sorted(ended)
    busy = [rank for rank in sorted(answers) if not answers[rank]["waiting"]]
    if busy:
        return f"not in the collective: {names(busy, answers)}", busy
    issued = {rank: sum(answer.get("issued", {}).values()) for rank, answer in answers.items()}
    behind = [rank for rank, count in issued.items() if count < max(issued.values())]
    if behind:
        return f"issued fewer collectives than others: {names(behind, answers)}", behind
    return "all ranks are in a collective: the network between them fails", []
