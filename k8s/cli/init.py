"""Guess a job file for the current folder: its script, and what the script seems to need.

render.py --init > job.yaml
"""

import ast
import re
from pathlib import Path
from typing import Any

from k8s.base.errors import config_error
from k8s.cli.from_torchrun import IMAGE, job_name
from k8s.cli.migrate import print_job_file

_MOST_FILES = 200
_MOST_BYTES = 1_000_000

# The packages that tell the framework of a script, and the patterns for the lines that it writes.
_FRAMEWORKS = {
    "transformers": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "torchtitan": "torchtitan",
    "deepspeed": None,
    "accelerate": None,
    "torch": None,
}


def print_init() -> None:
    """Print a job file for the current folder, and on stderr what was guessed. Raises Fault(64)."""
    values, notes = guess(Path())
    print_job_file(values, notes, head="Guessed from the files of this folder. To be checked:")


def guess(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a job file's values, and notes with the reason for each guess. Raises Fault(64)."""
    found = sorted(_scripts(folder), key=_rank)
    if not found:
        raise config_error(
            f"--init: no script in {folder.resolve()}: a .py file with `if __name__ == '__main__'`, or "
            "called train.py or main.py; go to its folder, or use --from-torchrun"
        )
    script, source = found[0]
    notes = [f"run.script: {script.name}, {_reason(script, source)}"]
    if len(found) > 1:
        others = ", ".join(one.name for one, _ in found[1:6])
        notes.append(f"run.script: other scripts in this folder are {others}")
    imported = _imported(source)
    framework = next((name for name in _FRAMEWORKS if name in imported), None)
    run: dict[str, Any] = {"script": script.name}
    if framework and (patterns := _FRAMEWORKS[framework]):
        run["patterns"] = patterns
        notes.append(f"run.patterns: {patterns}, because the script imports {framework}")
    elif framework is None:
        notes.append(
            "run: the script imports no known framework; check that it is the right script"
        )
    uses_gpu = re.search(r"cuda|nccl", source) or framework not in ("torch", None)
    if uses_gpu:
        notes.append(
            "resources.gpu: 1, because the script or a package of it uses a GPU if there is one"
        )
    else:
        notes.append(
            "resources: no GPU, because the script names none; set resources.gpu if it uses one"
        )
    notes.append(f"image: {IMAGE}, replace it with one that has the script's packages")
    notes.append("code.path: this folder travels with the job; keep the job file in it")
    values = {
        "name": job_name(
            script.stem if script.stem not in ("main", "train") else folder.resolve().name
        ),
        "image": IMAGE,
        "nodes": 1,
        "resources": {"gpu": 1} if uses_gpu else {"cpu": 2, "memory": "4Gi"},
        "run": run,
        "code": {"path": "."},
    }
    return values, notes


def _scripts(folder: Path) -> list[tuple[Path, str]]:
    """Return the programs among the folder's Python files, with their texts."""
    found = []
    for path in sorted(folder.glob("*.py"))[:_MOST_FILES]:
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                continue
            source = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            continue
        if _is_called_so(path) or re.search(
            r"^if\s*\(?\s*__name__\s*==\s*['\"]__main__['\"]", source, re.MULTILINE
        ):
            found.append((path, source))
    return found


def _is_called_so(path: Path) -> bool:
    return path.stem in ("main", "run") or path.stem.startswith("train")


def _rank(one: tuple[Path, str]) -> tuple[bool, bool, str]:
    path, source = one
    return path.stem != "train", not (_is_called_so(path) and _imported(source)), path.name


def _reason(script: Path, source: str) -> str:
    return (
        "by its name" if _is_called_so(script) else f"a program of {len(source.splitlines())} lines"
    )


def _imported(source: str) -> set[str]:
    """Return the packages that a script imports, anywhere in it; none if it is not valid Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}
