"""What the tests of the rendering side share: job files as dictionaries, renderings, environments."""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from k8s import launchers
from k8s.cli import command
from k8s.jobfile import load, validate
from k8s.plan.launcher import RunsIn
from k8s.plan.model import Plan
from k8s.render import manifests

# Without a cache it reads megabytes of schema for every object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml"
OWN_SCRIPT = ROOT / "k8s" / "jobs" / "13-own-script.yaml"
LAUNCHERS = launchers.known()
CLUSTER = [name for name in LAUNCHERS if launchers.find(name).runs_in is RunsIn.POD]
GOLDEN = ROOT / "tests" / "golden"
EVERYTHING = GOLDEN / "everything.yaml"

# Texts that can break templates: quotes, line ends, special characters of YAML and the shell, words that
# YAML does not read as text, and what Kubernetes expands.
AWKWARD = [
    "a\nb: \"c\" 'd'\n",
    ": ",
    "# no comment",
    "- x",
    "{{ jinja }} {% raw %}",
    "${HOME} $(id) `id` $HOME \\",
    "$(PET_NNODES)",
    "$$(A) $$ $",
    "$é",
    "-v /:/host",
    "'",
    '"',
    "",
    " ",
    "\ttab",
    "y",
    "no",
    "null",
    "~",
    "1e-05",
    "0o17",
    "0x1F",
    "1_000",
    "12:30",
    "2026-01-01",
    ".inf",
    "=",
    "é ü 漢 \U0001f600 \u2028 \x85 \ufeff \x7f",
    "*anchor",
    "&anchor",
    "!!python/object",
    "%",
    "a" * 300,
]


def job(**changes: Any) -> dict[str, Any]:
    """Return the values of a small valid job file, with changes; it has no companion objects."""
    return {"name": "a-job", "image": "muster:cpu", "network": {"isolate": False}, **changes}


def render(values: dict[str, Any], launcher: str) -> manifests.Rendered:
    found = launchers.find(launcher)
    return manifests.render(validate.validate(values), found)


def without(launcher: str, path: Path) -> list[str]:
    """Return the settings that remove from a job file what the launcher does not support."""
    settings = []
    values = load.read([str(path)]).values
    for key in launchers.find(launcher).lacks:
        value: Any = values
        if key == "nodes.min" and isinstance(value.get("nodes"), dict):
            settings += [f"nodes={value['nodes']['max']}"]
            continue
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if key == "code" and isinstance(value, dict) and "git" not in value:
            continue  # a machine has the folder
        settings += [f"{key}="] if value is not None else []
    return settings


def everything(launcher: str, path: Path = EVERYTHING) -> dict[str, Any]:
    """Return the job file with every key, without what the launcher does not support."""
    return load.read([str(path)], without(launcher, path)).values


def planned(values: dict[str, Any], launcher: str = "job") -> Plan:
    return render(values, launcher).plan


def pods(rendered: manifests.Rendered) -> list[dict[str, Any]]:
    """Return the templates of the trainer's pods in a rendering, wherever they are."""
    found: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict) and "containers" in value.get("spec", {}):
            found.append(value)
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)):
                walk(item)

    for one in rendered.objects:
        if one["kind"] != "Deployment":  # TensorBoard's
            walk(one)
    assert found or not rendered.objects
    return found


def only(rendered: manifests.Rendered, kind: str) -> dict[str, Any]:
    """Return the one object of a kind."""
    (found,) = (one for one in rendered.objects if one["kind"] == kind)
    return found


def environment_in_pod(pod: dict[str, Any]) -> dict[str, str]:
    """Return the literal variables as the kubelet hands them to the container."""
    variables: dict[str, str] = {}
    for entry in pod["spec"]["containers"][0]["env"]:
        if "value" in entry:
            variables[entry["name"]] = expand(entry["value"], variables)
    return variables


def expand(text: str, variables: dict[str, str]) -> str:
    """Expand $(NAME) and $$ as the kubelet does, which works byte by byte and so garbles `$é`."""
    source, result, at = text.encode(), b"", 0
    while at < len(source):
        following = source[at + 1 : at + 2]
        if source[at : at + 1] != b"$" or not following:
            result += source[at : at + 1]
            at += 1
        elif following == b"$":
            result += b"$"
            at += 2
        elif following == b"(" and b")" in source[at:]:
            end = source.index(b")", at)
            name = source[at + 2 : end].decode()
            result += variables[name].encode() if name in variables else source[at : end + 1]
            at = end + 1
        else:
            result += b"$" + following.decode("latin-1").encode()
            at += 2
    return result.decode(errors="replace")


def refused(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], *, out: bool = True
) -> str:
    """Run the command in this process, check that it refuses, and return its error line."""
    target = folder / "written"
    code = command.main([*arguments, "-o", str(target)] if out else arguments)
    seen = capsys.readouterr()
    assert code == 64
    assert seen.out == ""
    assert seen.err.count("\n") == 1, seen.err
    assert seen.err.startswith("render.py: ")
    assert not target.exists()
    return seen.err.strip()


def run_script(text: str, folder: Path, **environment: str) -> tuple[int, Any, str]:
    """Run a rendered script with /bin/sh in `folder`, with a program that writes what it was given.

    The program replaces python (for `local`) and docker. Returns the exit code, the program's arguments
    and environment, and standard error.
    """
    tool, program = folder / "docker", folder / "program.py"
    program.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'environment': dict(os.environ)}))\n"
    )
    # Not as the interpreter of a first line, which cannot hold a path with a space.
    tool.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{program}' \"$@\"\n")
    tool.chmod(0o755)
    script = folder / "script.sh"
    script.write_bytes(text.encode())
    done = subprocess.run(
        ["/bin/sh", str(script)],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": str(tool), **environment},
        capture_output=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr.decode()


def environment_in_script(values: dict[str, Any], launcher: str, folder: Path) -> dict[str, str]:
    """Return the variables that a rendered script, or compose file, hands to the trainer."""
    if launcher == "compose":
        service = yaml.safe_load(render(values, launcher).text)["services"]["node-0"]
        given = {name: text for name, text in service["environment"].items() if text is not None}
        return {name: text.replace("$$", "$") for name, text in given.items()}
    code, seen, errors = run_script(render(values, launcher).text, folder)
    assert code == 0, errors
    if launcher == "local":
        found: dict[str, str] = seen["environment"]
        return found
    arguments = seen["arguments"]
    return dict(value.split("=", 1) for option, value in pairwise(arguments) if option == "--env")
