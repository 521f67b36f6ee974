"""A thread beside the training that says which rank is slow, and ends a rank whose peers never come.

A rank that has waited in one collective for `TRAINER_COLLECTIVE_TIMEOUT` calls all ranks to write down
where they are: the stack of every thread and torch's flight recorder, to `logs/` of the run folder. Who
does not answer, or is not in a collective at all, is named; then all end with 69.

    with telling_when_late(settings), join(settings) as runtime: ...
        with watching(settings, runtime, report) as pulse: ...
"""

import contextlib
import faulthandler
import json
import logging
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from trainer.config.ending import drop_out, tell
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime, as_fault, from_main
from trainer.report.events import Report
from trainer.watch.dump import write_down
from trainer.watch.straggler import Straggler, Watch, Work
from trainer.watch.usage import Meter, of_ranks
from trainer.watch.where import Place, look

log = logging.getLogger("trainer")

_LOOK = 0.05  # seconds between two looks at the main thread
_TELL = 1.0  # and between two words to the other ranks
_ASLEEP = 5.0  # a look this late: the whole process was stopped, so nobody was waiting
_ANSWER = 5.0  # seconds for the others to write down where they are
_LINGER = 1.0  # the main rank's process may hold the store, which the others still read
_USAGE = 10.0  # seconds between two words on what the ranks take; more where they are many
_MEMORY = 200  # looks that are remembered


@dataclass
class Pulse:
    """What is watched: a run that is being built, until `steps` can be asked for its step.

    `calls` counts how often the ranks have agreed whether to stop: it grows while the run goes on.
    """

    settings: Settings
    runtime: Runtime
    report: Report
    steps: Callable[[], int] | None = None
    calls: Callable[[], int] = lambda: 0

    @property
    def step(self) -> int:
        return self.steps() if self.steps else 0


@dataclass
class _State:
    """What this rank's thread knows of its rank."""

    meter: Meter
    work: Work = field(default_factory=Work)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    calls: int = -1
    waiting_since: float = 0.0
    place: Place | None = None

    def look(self, place: Place, now: float, lapse: float, pulse: Pulse) -> None:
        """Take in where the main thread is, `lapse` seconds after the look before."""
        self.place = place
        if lapse > _ASLEEP:
            self.waiting_since += lapse
            return
        calls = pulse.calls()
        if not place.waiting or calls != self.calls:
            self.calls, self.waiting_since = calls, now
        if place.stepping and pulse.steps is not None:
            own = 0.0 if place.waiting else lapse
            self.work = Work(pulse.step, self.work.seconds + lapse, self.work.own + own)
            if not place.waiting:
                self.lines.append(place.line)


@contextlib.contextmanager
def telling_when_late(settings: Settings) -> Iterator[None]:
    """Have this rank's stack on standard error if it is still in the block after the time to wait.

    Before there is a process group nobody could be asked: others wait for a rank that hangs there.
    """
    faulthandler.dump_traceback_later(settings.collective_timeout)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def watching(settings: Settings, runtime: Runtime, report: Report) -> Iterator[Pulse]:
    """Watch this rank's main thread, which enters the block; a world of one has nobody to wait for."""
    faulthandler.cancel_dump_traceback_later()
    pulse = Pulse(settings, runtime, report)
    if runtime.control is None:
        yield pulse
        return
    # A store of its own connection: the group's is not to be waited for by two threads.
    store = dist.PrefixStore(
        f"watch/{from_main(os.urandom(8).hex(), runtime)}",
        dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=settings.collective_timeout),
        ),
    )
    over = threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(pulse, store, threading.current_thread(), over, Meter(runtime.device)),
        daemon=True,
    )
    watch.start()
    try:
        yield pulse
    except Exception as error:
        over.set()
        watch.join(timeout=_ANSWER)
        with contextlib.suppress(dist.DistError):  # for those who wait for this rank as well
            store.set(f"ended/{runtime.rank}", json.dumps(str(as_fault(error))))
        raise
    finally:
        over.set()
        watch.join(timeout=_ANSWER)


def _watch(
    pulse: Pulse,
    store: dist.Store,
    main: threading.Thread,
    over: threading.Event,
    meter: Meter,
) -> None:
    state = _State(meter)
    stragglers = Watch()
    last = state.waiting_since = time.monotonic()
    told = last - _TELL
    every = max(_USAGE, pulse.runtime.world_size / 10)
    reported = last - every
    while not over.wait(_LOOK):
        now = time.monotonic()
        if (place := look(main, device=pulse.runtime.device.type)) is not None:
            state.look(place, now, now - last, pulse)
        last = now
        if now - told < _TELL:
            continue
        told = now
        try:
            store.set(str(pulse.runtime.rank), json.dumps(_words(state)))
            called = store.check(["hang"])
            if pulse.runtime.is_main and not called:
                words = _read(store, [str(rank) for rank in range(pulse.runtime.world_size)])
                if (
                    pulse.steps
                    and now - reported >= every
                    and len(words) == pulse.runtime.world_size
                ):
                    reported = now
                    pulse.report("usage", step=pulse.step, ranks=of_ranks(words))
                _name_stragglers(pulse, words, stragglers, now)
        except dist.DistError:  # the store went with its host; what waits for it will say so
            return
        if called or now - state.waiting_since >= pulse.settings.collective_timeout:
            _give_up(pulse, store, state)


def _words(state: _State) -> dict[str, Any]:
    usual = Counter(state.lines).most_common(1)
    return {
        "host": socket.gethostname(),
        "work": asdict(state.work),
        "usually": usual[0][0] if usual else "",
        "line": state.place.line if state.place else "",
        "waiting": state.place.waiting if state.place else False,
        "usage": state.meter.read(),
    }


def _read(store: dist.Store, keys: list[str]) -> dict[int, Any]:
    """Return what stands at those of `keys` that are there, by the key's place."""
    there = [number for number, key in enumerate(keys) if store.check([key])]
    texts = store.multi_get([keys[number] for number in there]) if there else []
    return {number: json.loads(text) for number, text in zip(there, texts, strict=True)}


def _name_stragglers(pulse: Pulse, words: dict[int, Any], stragglers: Watch, now: float) -> None:
    work = {rank: Work(**one["work"]) for rank, one in words.items()}
    found: Straggler | None = stragglers.see(work, now)
    if found is None:
        return
    host, line = words[found.rank]["host"], words[found.rank]["usually"]
    pulse.report(
        "fault",
        kind="straggler",
        step=pulse.step,
        rank=found.rank,
        host=host,
        own_s=found.own,
        median_s=found.usual,
        at=line,
    )
    log.warning(
        "rank %s on %s is slow: %.3f s of its own work per step, others %.3f s, so they "
        "wait %.0f%% of the time; it is mostly at %s",
        found.rank,
        host,
        found.own,
        found.usual,
        100 * found.lost,
        line,
    )


def _give_up(pulse: Pulse, store: dist.Store, state: _State) -> NoReturn:
    """Write down where this rank is, name who did not come, and end the process with 69."""
    rank, world = pulse.runtime.rank, pulse.runtime.world_size
    before: dict[int, dict[str, Any]] = {}
    answers = {rank: _words(state)}
    ended: dict[int, str] = {}
    try:
        answers[rank]["issued"] = write_down(
            pulse.settings.run_folder / "logs", rank=rank, device=pulse.runtime.device.type
        )
        store.set("hang", "")
        store.set(f"answer/{rank}", json.dumps(answers[rank]))
        before = _read(store, [str(rank) for rank in range(world)])
        end = time.monotonic() + _ANSWER
        while len(answers | ended) < world and time.monotonic() < end:
            time.sleep(0.1)
            answers |= _read(store, [f"answer/{rank}" for rank in range(world)])
            ended = _read(store, [f"ended/{rank}" for rank in range(world)])
        time.sleep(_LINGER if pulse.runtime.is_main else 0)
        who, missing = _missing(answers, before, ended, world)
    except dist.DistError as error:
        who, missing = f"the others could not be asked ({str(error).splitlines()[0]})", []
    what = f"step {pulse.step + 1}" if pulse.steps else "the start, before the first step,"
    fault = Fault(
        Exit.PEER,
        f"{what} hangs: no progress for {pulse.settings.collective_timeout} s "
        f"(TRAINER_COLLECTIVE_TIMEOUT); {who}; stacks are in {pulse.settings.run_folder / 'logs'}",
    )
    pulse.report(
        "fault", kind="hang", step=pulse.step, missing=missing, ranks_heard=sorted(answers)
    )
    pulse.report("error", code=int(fault.code), message=str(fault))
    drop_out(tell(fault, None))


def _missing(
    answers: dict[int, dict[str, Any]],
    before: dict[int, dict[str, Any]],
    ended: dict[int, str],
    world: int,
) -> tuple[str, list[int]]:
    """Return in words, and as ranks, who keeps the others waiting."""
    silent = [rank for rank in range(world) if rank not in answers | ended]
    if silent:  # of those who have ended, some have lost just them
        return "no sign of life from " + ", ".join(_seen(r, before) for r in silent[:3]), silent
    if ended:
        said = ", ".join(f"rank {rank} ({ended[rank]})" for rank in sorted(ended)[:3])
        return f"others have ended: {said}", sorted(ended)
    busy = [rank for rank in sorted(answers) if not answers[rank]["waiting"]]
    if busy:
        return "not in the collective: " + ", ".join(_seen(r, answers) for r in busy[:3]), busy
    issued = {rank: sum(answer.get("issued", {}).values()) for rank, answer in answers.items()}
    behind = [rank for rank, count in issued.items() if count < max(issued.values())]
    if behind:
        fewer = ", ".join(_seen(rank, answers) for rank in behind[:3])
        return f"issued fewer collectives than others: {fewer}", behind
    return "all ranks are in a collective: it is the network between them that fails", []


def _seen(rank: int, words: dict[int, dict[str, Any]]) -> str:
    if rank not in words:
        return f"rank {rank}"
    return f"rank {rank} on {words[rank]['host']}, at {words[rank]['line']}"
