"""Record which samples every optimiser step has used, on each rank, and check the record.

It proves that a run with stops, lost ranks and resizes has used each sample once per epoch. A step
that is repeated after a resume replaces the same step of an earlier attempt.

    TRAINER_LEDGER=true python -m trainer && python -m trainer.engine.ledger runs/digits
"""

import errno
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.arguments import Parser, run_tool
from trainer.config.exits import Exit, Fault
from trainer.data.order import Samples
from trainer.distributed.messages import from_main
from trainer.engine.run import Run
from trainer.regular import open_to_append

log = logging.getLogger("trainer")


class Ledger:
    """This rank's record of one attempt, in `logs/`, if TRAINER_LEDGER is set.

    All ranks create it together.
    """

    def __init__(self, run: Run) -> None:
        self._file: Path | None = None
        self._drawn: deque[Samples] = deque()
        self._length = len(run.training)
        self._count = run.runtime.sizing.batches.accumulation
        if run.settings.ledger:
            folder = run.settings.run_folder / "logs"
            earlier = map(_attempt, folder.glob("ledger-*-rank*.jsonl"))
            attempt = from_main(1 + max(earlier, default=0), run.runtime, int)
            self._file = folder / f"ledger-{attempt:06d}-rank{run.runtime.rank}.jsonl"
            self._write(length=len(run.training), batch=run.batch, after=run.step)

    def track(self, shares: Iterator[Samples]) -> Iterator[Samples]:
        """Yield `shares`, and keep each until its step is done."""
        for samples in shares:
            if self._file:
                self._drawn.append(samples)
            yield samples

    def write_step(self, step: int) -> None:
        """Record the samples of a step that is done."""
        if self._file:
            used = [self._drawn.popleft() for _ in range(self._count)]
            found = [
                index
                for one in used
                for index in (one.indices[one.weights > 0] % self._length).tolist()
            ]
            self._write(step=step, samples=found)

    def _write(self, **entry: object) -> None:
        """Append a line. A full disk ends the ledger, not the run."""
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _append(self._file, f"{json.dumps(entry)}\n".encode())
        except OSError as error:
            log.warning(
                "%s: %s; the run goes on, but its ledger ends here", self._file, error.strerror
            )
            self._file = None


def _append(path: Path, line: bytes) -> None:
    """Append the whole line or nothing."""
    file = open_to_append(path)
    try:
        before = os.fstat(file).st_size
        if os.write(file, line) < len(line):
            os.truncate(file, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def _attempt(path: Path) -> int:
    return int(path.name.split("-")[1])


@dataclass(frozen=True)
class History:
    """The samples of every step, in order, and the number of attempts and of repeated steps."""

    length: int
    batch: int
    attempts: int
    repeated: int
    steps: dict[int, list[int]]


def read(run_folder: Path) -> History:
    """Return the history in a run's ledgers. Raises Fault(65) if there are none."""
    newest: dict[int, tuple[int, list[int]]] = {}
    attempts: set[int] = set()
    repeated = 0
    head: dict[str, int] = {}
    for path in sorted((run_folder / "logs").glob("ledger-*-rank*.jsonl")):
        attempt = _attempt(path)
        attempts.add(attempt)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise Fault(Exit.DATA, f"{path}, line {number}: not a ledger entry") from error
            if "step" not in entry:
                head = entry
                continue
            before, samples = newest.get(entry["step"], (attempt, []))
            if before < attempt:  # repeated; files come in the order of attempts
                samples = []
                repeated += 1
            newest[entry["step"]] = (attempt, samples + entry["samples"])
    if not head:
        raise Fault(Exit.DATA, f"{run_folder}/logs: no ledger here; TRAINER_LEDGER=true writes one")
    steps = {step: samples for step, (_, samples) in sorted(newest.items())}
    return History(head["length"], head["batch"], len(attempts), repeated, steps)


def check(history: History) -> str:
    """Check that every epoch used each sample once, and return the result in one line.

    After any step each sample must have been used once per whole epoch so far, or once more. Raises
    Fault(65) naming the first step that is wrong.
    """
    used = [0] * history.length
    total = epochs = 0
    for expected, (step, samples) in enumerate(history.steps.items(), start=1):
        if step != expected:
            raise Fault(Exit.DATA, f"step {expected} is missing: the next one is {step}")
        # A run ends with a short step; it may have been continued with more epochs.
        may_be_short = step == len(history.steps) or (total + len(samples)) % history.length == 0
        if len(samples) > history.batch or (len(samples) < history.batch and not may_be_short):
            raise Fault(Exit.DATA, f"step {step} used {len(samples)} samples, not {history.batch}")
        for index in samples:
            used[index] += 1
        total += len(samples)
        most = -(-total // history.length)
        if extra := [index for index in samples if used[index] > most]:
            raise Fault(Exit.DATA, f"step {step} used sample {extra[0]} once too often")
        if total // history.length > epochs:
            epochs = total // history.length
            if min(used) < epochs:
                missed = used.index(min(used))
                raise Fault(
                    Exit.DATA, f"epoch {epochs} ended at step {step} without sample {missed}"
                )
    return (
        f"{len(history.steps)} steps in {history.attempts} attempts, {history.repeated} done again: "
        f"each of {history.length} samples was used once in each of {total / history.length:g} epochs"
    )


def main() -> int:
    """Check the run folder given on the command line and return the exit code."""
    parser = Parser(
        prog="python -m trainer.engine.ledger",
        description="Checks that a run with TRAINER_LEDGER=true used each sample once in each epoch.",
    )
    parser.add_argument("run", type=Path, help="the run folder (the run's TRAINER_OUT)")
    return run_tool("ledger", lambda: [check(read(parser.parse_args().run))])


if __name__ == "__main__":
    sys.exit(main())
