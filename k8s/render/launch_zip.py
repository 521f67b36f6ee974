"""The launcher as one file, a zipapp: it needs Python 3.10 and no package.

It is the same for the same files, so its hash is its version. It has the files that trainer/launch.py
imports.

python -c "from k8s.render.launch_zip import build; print(len(build()))"
"""

import ast
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import trainer

_ROOT = Path(trainer.__file__).parents[1]

# Modules that are started or read as separate files. What they import is added.
_ROOTS = (
    "trainer.launch",
    "trainer.health",
    "trainer.launcher.orphans",
    "trainer.distributed.devices",
)

_MAIN = """import os
import runpy

if first := os.environ.pop("MUSTER_PYTHONPATH", ""):
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{first}:{rest}" if rest else first
runpy.run_module("trainer.launch", run_name="__main__", alter_sys=True)
"""
_OLDEST = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold


@cache
def build() -> bytes:
    """Return the zipapp."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in sorted({"__main__.py": _MAIN.encode(), **_files()}.items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.create_system = 3  # Unix, on every system
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text, compresslevel=9)
    return made.getvalue()


def _files() -> dict[str, bytes]:
    """Return the launcher's modules by their paths: what it imports, and what that imports."""
    found: dict[str, bytes] = {}
    wanted = list(_ROOTS)
    while wanted:
        name = wanted.pop()
        path = _path(name)
        if path is None or (place := path.relative_to(_ROOT).as_posix()) in found:
            continue
        found[place] = path.read_bytes()
        wanted += _imported(found[place])
        wanted.append(name.rpartition(".")[0])  # its package
    return found


def _path(module: str) -> Path | None:
    """Return the file of a module in `trainer`; None for other modules, and for a name in a module."""
    if module.partition(".")[0] != "trainer":
        return None
    path = _ROOT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _imported(source: bytes) -> Iterator[str]:
    """Yield what a file imports, and each name from it, which may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
