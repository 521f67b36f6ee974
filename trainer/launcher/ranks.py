"""The processes of this node's ranks in one round: started, watched, signalled, ended.

ranks = Ranks.start(program.start, place, ...)
while not ranks.poll(): ...
ranks.end(grace=30, turn=lambda: None)
"""

import contextlib
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from trainer.config.exits import Exit
from trainer.launcher.failures import Failure, read_failure
from trainer.launcher.output.rank_output import RankOutput
from trainer.launcher.output.run_events import RunEvents
from trainer.launcher.sessions import processes
from trainer.rendezvous.events import Round

_KILL_TIMEOUT = 30.0  # seconds; a process that waits for a device cannot be killed at once


class Process(Protocol):
    """The part of subprocess.Popen that is used here."""

    pid: int

    def poll(self) -> int | None: ...


class Start(Protocol):
    """Starts a process in a new session."""

    def __call__(self, environment: Mapping[str, str], *, stdout: int, stderr: int) -> Process: ...


@dataclass(frozen=True)
class Program:
    """The program that the ranks run: how a rank starts, and its variables besides torchrun's.

    `open_store` returns the process and the port of a new store; None: rank 0 keeps the store.
    """

    start: Start
    variables: Callable[[Round, Path], Mapping[str, str]]  # of a round; the folder is for its files
    is_trainer: bool
    open_store: Callable[[], tuple[Process, int]] | None
    note: str = ""  # a line for the log about a choice that was made for it
    events: RunEvents | None = None  # None: the program writes them itself


@dataclass(frozen=True)
class NextRound:
    """The ranks will start again. `clean`: they could save. `counted`: it counts in PET_MAX_RESTARTS."""

    clean: bool = True
    counted: bool = False


class Ranks:
    """This node's ranks in a round. An object without ranks is one whose ranks have all ended."""

    def __init__(self, first_rank: int = 0, exit_codes: Mapping[int, int] | None = None) -> None:
        self.first_rank = first_rank
        self._exit_codes = exit_codes
        self._processes: list[Process] = []
        self._error_files: list[Path] = []
        self._codes: dict[int, int] = {}  # of the ranks that have ended, by local rank
        self._own_codes: dict[int, int] = {}  # the program's own, before `exit_codes` was applied
        self._ended_at: dict[int, float] = {}
        self._asked = False  # to end, by SIGTERM
        self._passed_on: set[int] = set()  # processes of ended ranks that have got it, too

    @classmethod
    def start(
        cls,
        start: Start,
        place: Round,
        *,
        ranks: int,
        variables: Mapping[str, str],
        output: RankOutput,
        folder: Path,
        exit_codes: Mapping[int, int] | None,
    ) -> "Ranks":
        """Start the ranks of a round with torchrun's variables, and `variables`.

        `exit_codes` maps the program's codes to ours; 0 and 143 stay, and any other code becomes 70.
        """
        found = cls(place.first_rank, exit_codes)
        files = output.files(place.first_rank, place.world_size)
        for local in range(ranks):
            error_file = folder / f"round-{place.number}-rank-{local}.json"
            given = {**variables, **_variables(place, local, ranks)}
            environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **os.environ, **given}
            environment["TORCHELASTIC_ERROR_FILE"] = str(error_file)
            if "MUSTER_EVENTS" in variables and place.first_rank + local > 0:
                environment["MUSTER_EVENTS"] = os.devnull
            stdout, stderr = files[local]
            found._error_files.append(error_file)
            found._processes.append(start(environment, stdout=stdout, stderr=stderr))
        return found

    def poll(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended, by local rank."""
        for local, process in enumerate(self._processes):
            if local not in self._codes and (code := process.poll()) is not None:
                if code == -signal.SIGTERM and self._asked and self._has_left(process.pid):
                    continue
                self._own_codes[local], self._ended_at[local] = code, time.time()
                own = self._exit_codes
                if own is not None and code > 0 and code != Exit.STOPPED:
                    code = own.get(code, int(Exit.CODE))
                self._codes[local] = code
        return self._codes

    def _has_left(self, pid: int) -> bool:
        """Return whether processes that a rank started still run; those without parent get SIGTERM, too.

        A shell ends at SIGTERM without a word to the program that it waits for. That program still
        needs its loader workers.
        """
        left = {one.pid: one.parent for one in processes({pid}) if not one.has_ended}
        for orphan in {one for one, parent in left.items() if parent not in left} - self._passed_on:
            self._passed_on.add(orphan)
            with contextlib.suppress(OSError):
                os.kill(orphan, signal.SIGTERM)
        return bool(left)

    @property
    def processes(self) -> list[int]:
        """The pids of the ranks, each the leader of a session."""
        return [process.pid for process in self._processes]

    @property
    def running(self) -> bool:
        """Whether a rank still runs."""
        return len(self.poll()) < len(self._processes)

    @property
    def have_succeeded(self) -> bool:
        """Whether all have ended with 0. It polls once: between two polls a rank may fail."""
        codes = self.poll()
        return len(codes) == len(self._processes) and not any(codes.values())

    @property
    def has_reported_failure(self) -> bool:
        """Whether a rank here has written why it ends (trainer/config/ending.py)."""
        return any(map(self.has_reported, range(len(self._error_files))))

    def has_reported(self, local: int) -> bool:
        """Return whether the rank `local` has written why it ends."""
        return self._error_files[local].exists()

    def own_failures(
        self, first: Mapping[int, int], raised_at: Mapping[int, float]
    ) -> dict[int, Failure]:
        """Return the failures of the ranks that did not end because they were asked to.

        Before that, the ranks in `first` had ended with these codes, and those in `raised_at` had
        written a traceback at that time. A rank that has reported a failure had failed before, too. Of
        other ranks, the end by a signal or a stop shows nothing.

        A rank with a traceback that still ran may be the cause if those that had ended may have lost
        it: they raised or aborted, too. Else its traceback was one that it had caught.
        """
        asked = {0, int(Exit.STOPPED)}
        codes = {
            local: code
            for local, code in self.poll().items()
            if local in first
            or self.has_reported(local)
            or (code in set(Exit) and code not in asked)
        }
        had_lost = all(
            local in raised_at or code == -signal.SIGABRT for local, code in first.items() if code
        )
        for local in raised_at if had_lost else ():
            if (
                local not in first
                and self._codes.get(local) not in asked
                and codes.get(local) in (None, -signal.SIGTERM)
            ):
                codes[local] = int(Exit.CODE)
        failures = self.failures(codes, raised_at)
        if done := [self.first_rank + local for local, code in first.items() if not code]:
            after = f", after rank {done[0]} had ended with 0"
            failures = {n: replace(one, message=one.message + after) for n, one in failures.items()}
        return failures

    def failures(
        self, codes: Mapping[int, int], raised_at: Mapping[int, float] | None = None
    ) -> dict[int, Failure]:
        """Return why ranks failed, by global rank; `raised_at`: when, if a traceback showed it."""
        return {
            self.first_rank + local: read_failure(
                code,
                self._error_files[local],
                now=(raised_at or {}).get(local, self._ended_at[local]),
                own_code=self._own_codes[local],
            )
            for local, code in codes.items()
            if code
        }

    def send(self, number: signal.Signals) -> None:
        """Signal the running ranks. Not their process groups: they still need their loader workers.

        SIGTERM only once: after a second one a handler may no longer save.
        """
        if number == signal.SIGTERM and self._asked:
            return
        self._asked |= number == signal.SIGTERM
        for local, process in enumerate(self._processes):
            if local not in self._codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def kill(self) -> None:
        """Kill the ranks and the processes they have started."""
        self.signal_groups(signal.SIGKILL)

    def signal_groups(self, number: signal.Signals) -> None:
        """Signal the ranks and the processes they have started."""
        for pid in self.processes:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)
        for one in processes(self.processes):  # those in other groups
            with contextlib.suppress(OSError):
                os.kill(one.pid, number)

    def end(
        self,
        *,
        grace: float,
        turn: Callable[[], None],
        number: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Ask the ranks to end, kill them after `grace` seconds; call `turn` meanwhile."""
        self.signal_groups(signal.SIGCONT)  # a suspended rank would not notice the signal
        self.send(number)
        for limit in (grace, _KILL_TIMEOUT):
            deadline = time.monotonic() + limit
            while self.running and time.monotonic() < deadline:
                turn()
            self.kill()


def start_command(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int, stderr: int
) -> Process:
    """Start a rank of any program. It dies with this process (Linux)."""
    wrapper = []
    if sys.platform == "linux":
        # The source is passed, because this package may be in a zip file.
        source = pkgutil.get_data("trainer.launcher", "orphans.py") or b""
        wrapper = [sys.executable, "-ISc", source.decode(), str(os.getpid())]
    return subprocess.Popen(
        [*wrapper, *command], env=environment, stdout=stdout, stderr=stderr, start_new_session=True
    )


def _variables(place: Round, local: int, ranks: int) -> dict[str, str]:
    """Return the variables that torchrun gives a rank, except its error file."""
    rank = place.first_rank + local
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }
