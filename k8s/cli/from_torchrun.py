"""The job file of a torchrun command line.

render.py --from-torchrun -- torchrun --nnodes 2 --nproc-per-node 8 train.py --lr 1 > job.yaml
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from k8s.base.errors import config_error
from k8s.cli.migrate import print_job_file

_IMAGE = "docker.io/pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"

# What the launcher or the controller sets, or does in its own way.
_SET_ELSEWHERE = (
    *("node-rank", "master-addr", "master-port", "local-addr"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("role", "log-dir", "redirects", "tee", "local-ranks-filter", "monitor-interval"),
    *("start-method", "logs-specs", "local-rank"),
)


def print_from_torchrun(words: Sequence[str]) -> None:
    """Print the job file of a command line, and notes on stderr. Raises Fault(64)."""
    values, notes = convert(words)
    print_job_file(values, notes, head=f"From {shlex.join(words)}. To be checked:")


def convert(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a job file's values for a command line, and notes. Raises Fault(64)."""
    variables = []
    rest = list(words)
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables.append({"name": name, "value": value})
    asked = _parser().parse_args(_without_torchrun(rest))
    if not asked.program:
        raise config_error(f"--from-torchrun: no program in {shlex.join(words)!r}")
    notes = [
        f"image: {_IMAGE.rpartition('/')[2]}, to be replaced by one with what the program imports"
    ]
    notes += [
        f"--{option}: left out; the launcher sets it, or does it in its own way"
        for option in _SET_ELSEWHERE
        if getattr(asked, option.replace("-", "_")) is not None
    ]
    run, travels = _run(asked, notes)
    values = {
        "name": _name(PurePath(asked.program[0]).stem),
        "image": _IMAGE,
        "nodes": _nodes("1" if asked.standalone else asked.nnodes),
        **_ranks(asked.nproc_per_node, notes),
        "run": run,
        "code": {"path": "."} if travels else None,
        "env": variables,
        "faults": {"restarts": "ranks", "maxRestarts": asked.max_restarts}
        if asked.max_restarts
        else None,
    }
    return {key: value for key, value in values.items() if value not in (None, [], {})}, notes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise config_error(f"--from-torchrun: {message}")


def _parser() -> argparse.ArgumentParser:
    """Return torchrun's own options, each also with underscores."""
    parser = _Parser(add_help=False, allow_abbrev=False)

    def add(option: str, *short: str, **kinds: Any) -> None:
        names = dict.fromkeys([f"--{option}", f"--{option.replace('-', '_')}", *short])
        parser.add_argument(*names, dest=option.replace("-", "_"), **kinds)

    add("nnodes", default="1")
    add("nproc-per-node", default="1")
    add("max-restarts", type=int, default=0)
    for flag in ("standalone", "no-python", "run-path"):
        add(flag, action="store_true")
    add("module", "-m", action="store_true")
    for option in _SET_ELSEWHERE:
        add(option, *({"redirects": ["-r"], "tee": ["-t"]}.get(option, [])))
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def _without_torchrun(words: list[str]) -> list[str]:
    if words and PurePath(words[0]).name == "torchrun":
        return words[1:]
    if (
        len(words) > 2
        and PurePath(words[0]).name.startswith("python")
        and words[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
    ):
        return words[3:]
    raise config_error(
        f"--from-torchrun: {shlex.join(words[:3]) or 'nothing'!r} is not torchrun; write the whole "
        "command line after --, e.g. -- torchrun --nproc-per-node 8 train.py"
    )


def _run(asked: argparse.Namespace, notes: list[str]) -> tuple[dict[str, Any], bool]:
    """Return `run`, and whether the folder is to travel."""
    first, *args = asked.program
    if asked.module:
        run: dict[str, Any] = {"module": first}
    elif asked.no_python:
        run = {"command": [first]}
    else:
        run = {"script": first}
    if args:
        run["args"] = args
    path = PurePath(first)
    if asked.module or not (path.is_absolute() or ".." in path.parts):
        notes.append("code.path: the current folder; keep the job file in it")
        return run, True
    notes.append(f"{first}: not below the current folder, so it must be in the image")
    return run, False


def _nodes(text: str) -> int | dict[str, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None:
        raise config_error(f"--from-torchrun: --nnodes={text!r}: must be a number, or MIN:MAX")
    least, most = int(found[1]), int(found[2] or found[1])
    return least if least == most else {"min": least, "max": most}


def _ranks(text: str, notes: list[str]) -> dict[str, Any]:
    if text.isdecimal():
        notes.append(f"resources.gpu: {text}, one for each rank; without GPUs set procsPerNode")
        return {"resources": {"gpu": int(text)}}
    if text not in ("gpu", "auto", "cpu", "xpu"):
        raise config_error(f"--from-torchrun: --nproc-per-node={text!r}: must be a number")
    notes.append(
        f"--nproc-per-node={text}: set resources.gpu, from which the number of ranks follows"
    )
    return {}


def _name(stem: str) -> str:
    """Return a job's name made of a file's."""
    found = re.sub(r"[^a-z0-9]+", "-", stem.lower()).lstrip("-0123456789")[:40].rstrip("-")
    return found or "job"
