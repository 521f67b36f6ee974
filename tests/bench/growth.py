"""How cost grows: a command's processor time for a size, ten times that size, a hundred times.

    python -m tests.bench.growth files steps

The last figure of a row is the time at the largest size divided by the time at the size before, both
without the time at the smallest size: 10 is linear, more is worse.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import SCRIPTS, Contender, to_end
from tests.conftest import ROOT
from trainer.checkpoint.manifest import name_of

_STEPS, _CONTROL = "50", (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Growth:
    """`prepare(size, folder)` makes what a command reads, and returns the command."""

    what: str
    sizes: tuple[int, ...]
    prepare: Callable[[int, Path], Contender]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(GROWTHS))
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of a row's own")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(GROWTHS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(GROWTHS)}")
    print("| what | seconds of processor time | the largest by the one before |")
    print("| --- | --- | --- |")
    for name in args.rows or GROWTHS:
        row = GROWTHS[name]
        found = {size: seconds(row, size) for size in args.sizes or row.sizes}
        shown = ", ".join(f"{size:,}: {took:.2f}" for size, took in found.items())
        print(f"| {row.what} | {shown} | {by_the_one_before([*found.values()])} |", flush=True)
    return 0


def seconds(row: Growth, size: int) -> float:
    """Return the smaller of two times: other processes may slow one of them."""
    folder = Path(tempfile.mkdtemp(prefix="growth-"))
    try:
        command = row.prepare(size, folder)
        return min(to_end(command).cpu for _ in range(2))
    finally:
        shutil.rmtree(folder)


def by_the_one_before(times: list[float]) -> str:
    if len(times) < 3:
        return ""
    least, before, last = times[0], *times[-2:]
    return f"{(last - least) / max(before - least, 0.01):.1f}"


def _jobs(size: int, folder: Path) -> Contender:
    for number in range(size):
        job = folder / f"{number}.yaml"
        job.write_text(f"{{name: job-{number}, image: 'a:1', nodes: 2}}")
    files = [str(folder / f"{number}.yaml") for number in range(size)]
    return Contender((str(ROOT / "render.py"), *files, "--each", "-o", str(folder / "out")))


def _nodes(size: int, _: Path) -> Contender:
    job = str(ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml")
    sets = (f"nodes={size}", f"trainer.globalBatch={4 * size}")
    options = [part for one in sets for part in ("--set", one)]
    return Contender((str(ROOT / "render.py"), job, *options, "--launcher", "jobset"))


def _ranks(size: int, _: Path) -> Contender:
    options = ("--nproc-per-node", str(size), "--", "true")
    return Contender(("-m", "trainer.launch", *options), {"TRAINER_OUT": "run"})


def _events(size: int, folder: Path) -> None:
    figures = {"epoch": 0, "lr": 0.1, "grad_norm": 1.0, "samples_per_s": 320.0}
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(1, size + 1):
            place = {"event": "step", "time": 1.7e9 + step / 10, "step": step, "loss": 1 + 1 / step}
            file.write(json.dumps(place | figures) + "\n")


def _report(size: int, folder: Path) -> Contender:
    _events(size, folder)
    return Contender(("-m", "trainer.report", str(folder), "-o", str(folder / "report.html")))


def _runs(size: int, folder: Path) -> Contender:
    _events(size, folder)
    return Contender(("-m", "trainer.runs", str(folder)))


def _finished(folder: Path) -> Contender:
    """Train two steps; return the command that then finds nothing to do."""
    settings = {"TRAINER_TASK": "synthetic", "TRAINER_OUT": str(folder), "TRAINER_STEPS": "2"}
    again = Contender(("-m", "trainer"), settings)
    to_end(again)
    return again


def _resume(size: int, folder: Path) -> Contender:
    again = _finished(folder)
    _events(size, folder)
    return again


def _checkpoints(size: int, folder: Path) -> Contender:
    again = _finished(folder)
    steps = {
        int(path.name.removeprefix("step-")): path
        for path in (folder / "checkpoints").glob("step-*")
    }
    last = steps[max(steps)]
    for number in range(size):
        shutil.copytree(last, last.with_name(name_of(max(steps) + 1 + number)))
    return again


def _files(size: int, folder: Path, *, keep: bool = False) -> Contender:
    classes = [f"class-{number:03}" for number in range(10)]
    for name in classes:
        (folder / name).mkdir()
        for number in range(size // len(classes)):
            (folder / name / f"{name}-{number:07}.jpg").touch()
        os.utime(folder / name, (0, 0))  # a folder that has just changed is listed again
    kept = f"Path({str(folder / 'kept')!r})" if keep else None
    code = f"Folder(Path({str(folder)!r}), {classes!r}, 224, keep={kept})"
    imports = "from pathlib import Path; from trainer.tasks.imagefolder import Folder"
    return Contender(("-c", f"{imports}; {code}"))


def _files_again(size: int, folder: Path) -> Contender:
    again = _files(size, folder, keep=True)
    to_end(again)
    return again


def _steps_of_ranks(size: int, folder: Path) -> Contender:
    settings = {"TRAINER_TASK": "synthetic", "TRAINER_MODE": "ddp", "TRAINER_STEPS": _STEPS}
    settings |= {"TRAINER_RESUME": "never"}  # the second time, too
    ranks = {"TRAINER_GLOBAL_BATCH": str(size), "PET_NPROC_PER_NODE": str(size)}
    return Contender(
        ("-m", "trainer.launch"), settings | ranks | {"TRAINER_OUT": str(folder / "run")}
    )


def _steps_of_bare_ranks(size: int, _: Path) -> Contender:
    return Contender((str(SCRIPTS / "forked.py"), str(size), _STEPS))


def _parameters(size: int, _: Path) -> Contender:
    name = {1: "tiny", 124: "124m", 350: "350m", 1000: "1b"}[size]
    model = {"TRAINER_TASK": "tokens", "TRAINER_MODEL": name, "TRAINER_GLOBAL_BATCH": "8"}
    return Contender(("-m", "trainer"), model | {"TRAINER_MODE": "fsdp", "TRAINER_DRY_RUN": "8"})


GROWTHS = {
    "jobs": Growth("render: job files in one call", (10, 100, 1000), _jobs),
    "nodes": Growth("render: nodes of one job", (10, 100, 1000, 10_000), _nodes),
    "ranks": Growth("the launcher: ranks of a command on one node", (1, 8, 64), _ranks),
    "resume": Growth(
        "resuming: step events of the run so far", (1000, 10_000, 100_000, 1_000_000), _resume
    ),
    "runs": Growth(
        "`trainer.runs`: step events of a run", (1000, 10_000, 100_000, 1_000_000), _runs
    ),
    "report": Growth("the report: step events", (1000, 10_000, 100_000, 1_000_000), _report),
    "checkpoints": Growth("resuming: checkpoints kept", (1, 10, 100, 1000), _checkpoints),
    "parameters": Growth(
        "a dry run of fsdp: millions of parameters", (1, 124, 350, 1000), _parameters
    ),
    "files": Growth("`imagefolder`: files", (1000, 10_000, 100_000, 1_300_000), _files),
    "files-again": Growth(
        "`imagefolder`: files, at the next start", (1000, 10_000, 100_000, 1_300_000), _files_again
    ),
    "control": Growth(
        f"start, {_STEPS} steps of a tiny network and end: ranks of ddp", _CONTROL, _steps_of_ranks
    ),
    "control-bare": Growth(
        "the same by bare DDP, its ranks forked, too", _CONTROL, _steps_of_bare_ranks
    ),
}

if __name__ == "__main__":
    sys.exit(main())
