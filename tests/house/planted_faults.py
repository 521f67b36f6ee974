"""Plant faults in a copy of the code, one at a time; a test must see each.

    python -m tests.house.planted_faults               # all, some minutes
    python -m tests.house.planted_faults --only 7      # one, by its number
    python -m tests.house.planted_faults --list        # the table; starts no test

Exit code 0 when every fault was seen, or its tests had no end; else 1. A fault whose text is no longer
in its file must be rewritten.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.conftest import ROOT, clean_environment, run_command

TABLE = Path(__file__).with_suffix(".yaml")
_TIMEOUT = 240.0  # seconds for the tests of one fault
_NO_END = f"no end, {_TIMEOUT:.0f} s"  # they hang because of the fault, or the machine is slow
_TESTS_FAILED = 1  # pytest's exit code; 2 or more: it could not run the tests


@dataclass(frozen=True)
class Fault:
    """A change of `file` that the tests named in `tests`, paths below tests/, must fail on."""

    file: str
    before: str
    after: str
    tests: str


def table() -> list[Fault]:
    """Return the faults in the order of planted_faults.yaml."""
    listed = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [Fault(file, **fault) for file, faults in listed.items() for fault in faults]


def main() -> int:
    """Plant each selected fault, and return 1 unless all were seen."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--only", type=int, metavar="N", help="the number of one fault")
    asked.add_argument("--list", action="store_true", help="print the table, run nothing")
    options = asked.parse_args()
    faults = table()
    if options.only is not None and not 1 <= options.only <= len(faults):
        asked.error(f"--only {options.only}: there are faults 1 to {len(faults)}")
    numbers = [options.only] if options.only else range(1, len(faults) + 1)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        if not options.list:
            _copy_to(tree)
        for number in numbers:
            fault = faults[number - 1]
            result = applies(fault) if options.list else _plant(fault, tree)
            bad += result not in ("seen", "applies", _NO_END)
            change = f"{fault.before!r} -> {fault.after!r}"
            print(f"{number:3}  {result:15}  {fault.file}: {change}  [{fault.tests}]", flush=True)
    print(f"{len(numbers) - bad} of {len(numbers)} as they should be")
    return int(bad > 0)


def _copy_to(tree: Path) -> None:
    """Copy tracked and new files from the working tree."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = run_command(command, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def applies(fault: Fault) -> str:
    """Return "applies" if the fault's text is in its file exactly once, else what is wrong."""
    file = ROOT / fault.file
    count = file.read_text(encoding="utf-8").count(fault.before) if file.exists() else 0
    return {0: "text not found", 1: "applies"}.get(count, "text twice")


def _plant(fault: Fault, tree: Path) -> str:
    """Return "seen" when the tests fail with the fault, that they had no end, or what is wrong."""
    if (result := applies(fault)) != "applies":
        return result
    tests = [f"tests/{path}" for path in fault.tests.split()]
    if missing := [path for path in tests if not (tree / path).exists()]:
        return f"no {missing[0]}"
    file = tree / fault.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        # no bytecode: its cache could not tell two faults of the same length within a second apart
        environment = clean_environment(
            PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1", MUSTER_TEST_WHY="whole"
        )
        ended = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return _NO_END
    finally:
        file.write_text(text, encoding="utf-8")
    if ended.returncode > _TESTS_FAILED:
        return f"pytest exit {ended.returncode}"
    return "seen" if ended.returncode == _TESTS_FAILED else "NOT SEEN"


if __name__ == "__main__":
    sys.exit(main())
