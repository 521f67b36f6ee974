"""Feed mutated inputs to code that reads untrusted bytes, and keep inputs that do harm.

make fuzz SECONDS=600 SEED=7
python -m tests.fuzz "job file"      # one target

Harm is a crash, an exception other than Fault(64) and Fault(65), 5 s of processor time for one input,
30 s of waiting, or 300 MB more memory.
Such inputs are written to build/fuzz; `make test` runs those that are copied to tests/fuzz/found.
"""

import os
import random
import sys
import tempfile
import time
import warnings
from argparse import ArgumentParser
from pathlib import Path

from tests.bounds import bounded
from tests.fuzz.harm import attempt, mutate
from tests.fuzz.targets import TARGETS

BATCH = 500
FOUND = Path("build/fuzz")


def main() -> int:
    """Fuzz every target in turn and return how many inputs did harm."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="*", help=f"by default all: {', '.join(TARGETS)}")
    names = parser.parse_args().target or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target is named {unknown[0]!r}; there are {', '.join(TARGETS)}")
    seconds = float(os.environ.get("SECONDS", "60"))
    seed = int(os.environ.get("SEED") or time.time())
    print(f"SEED={seed}, {seconds:.0f} s, targets: {', '.join(names)}")
    end = time.monotonic() + seconds
    counts, harmful = dict.fromkeys(names, 0), 0
    batch = 0
    while time.monotonic() < end:
        for name in names:
            if time.monotonic() >= end:
                break
            done, problem = fuzz(name, f"{seed}-{batch}")
            counts[name] += done
            if problem:
                harmful += 1
                print(f"{name}: {problem}")
        batch += 1
    for name, count in counts.items():
        print(f"{count:>9,} inputs  {name}")
    print(f"{sum(counts.values()):>9,} inputs in all; {harmful} did harm")
    return min(harmful, 125)


def fuzz(name: str, seed: str) -> tuple[int, str]:
    """Give a target BATCH inputs in a separate process; return their number and the harm of the last."""
    target = TARGETS[name]
    dice = random.Random(f"{name}-{seed}")  # noqa: S311
    seeds = target.seeds()
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as scratch:
        count, current = Path(scratch) / "count", Path(scratch) / "input"
        folder = Path(scratch) / "folder"
        folder.mkdir()

        def run() -> None:
            warnings.simplefilter("ignore")  # a library's messages about a damaged file
            for number in range(BATCH):
                data = mutate(seeds, dice)
                current.write_bytes(data)
                attempt(target, data, folder)
                count.write_text(str(number + 1), encoding="ascii")

        problem = bounded(run, seconds=600)
        done = int(count.read_text(encoding="ascii")) if count.exists() else 0
        if problem:
            FOUND.mkdir(parents=True, exist_ok=True)
            kept = FOUND / f"{name.replace(' ', '_')}-{seed}-{done}.bin"
            kept.write_bytes(current.read_bytes())
            problem = f"{problem[:300]}; kept in {kept}"
    return done, problem


if __name__ == "__main__":
    sys.exit(main())
