"""Parse a torchrun command line and return the job file's key `run` for it.

words = without_torchrun(["torchrun", "--nproc-per-node", "8", "train.py"])
run = run_of_torchrun(parse(words, label="--from-torchrun"))     # {"script": "train.py"}
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from k8s.base.errors import config_error

# The options that the launcher or the controller sets, or replaces in its own way.
SET_ELSEWHERE = (
    *("node-rank", "master-addr", "master-port", "local-addr"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("role", "log-dir", "redirects", "tee", "local-ranks-filter", "monitor-interval"),
    *("start-method", "logs-specs", "local-rank", "log-line-prefix-template"),
    *("duplicate-stdout-filters", "duplicate-stderr-filters", "event-log-handler"),
    *("numa-binding", "signals-to-handle", "shutdown-timeout"),
)


def without_torchrun(words: Sequence[str]) -> list[str] | None:
    """Return the words after torchrun or python -m torch.distributed.run; None for another program."""
    first, *others = words or [""]
    if PurePath(first).name == "torchrun":
        return others
    others = others[others[:1] == ["-u"] :]
    modules = (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
    is_python = PurePath(first).name.startswith("python")
    return others[2:] if is_python and others[:2] in modules else None


def parse(words: Sequence[str], *, label: str) -> argparse.Namespace:
    """Return torchrun's options and its program. Raises Fault(64); its text starts with `label`."""
    parser = _Parser(prog=label, add_help=False, allow_abbrev=False)

    def add(option: str, *short: str, **kinds: Any) -> None:
        names = dict.fromkeys([f"--{option}", f"--{option.replace('-', '_')}", *short])
        parser.add_argument(*names, dest=option.replace("-", "_"), **kinds)

    add("nnodes", default="1")
    add("nproc-per-node", default="1")
    add("max-restarts", type=int, default=0)
    for flag in ("standalone", "no-python", "run-path", "use-env"):
        add(flag, action="store_true")
    add("module", "-m", action="store_true")
    for option in SET_ELSEWHERE:
        add(option, *({"redirects": ["-r"], "tee": ["-t"]}.get(option, [])))
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if not asked.program:
        raise config_error(f"{label}: no program in {shlex.join(['torchrun', *words])!r}")
    return asked


def local_rank_note(words: Sequence[str], asked: argparse.Namespace) -> list[str]:
    """Return a note if the program got an argument that neither torchrun nor muster gives it."""
    given = "torch.distributed.launch" in words and not asked.use_env
    note = (
        "the program got --local-rank from torch.distributed.launch; let it read LOCAL_RANK instead"
    )
    return [note] if given else []


def run_of_torchrun(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the job file's `run` for a command line of torchrun."""
    kind = "module" if asked.module else "command" if asked.no_python else "script"
    return run_of(kind, asked.program)


def run_of(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the job file's `run` for a script, module or command and its arguments."""
    first, *args = words
    run: dict[str, Any] = {kind: [first] if kind == "command" else first}
    return run | ({"args": args} if args else {})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise config_error(f"{self.prog}: {message}")
