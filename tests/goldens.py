"""The goldens: what render.py writes, kept to be read and compared.

python -m tests.goldens writes them again.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml

from k8s.cli import command
from k8s.jobfile import load
from k8s.render.archive import Archive, pack
from tests.frameworks.jobs import FRAMEWORKS, SCRIPTS, job_of
from tests.rendering import (
    CLUSTER,
    EVERYTHING,
    EXAMPLE,
    GOLDEN,
    LAUNCHERS,
    OWN_SCRIPT,
    ROOT,
    everything,
    render,
    without,
)
from trainer.config.exits import Fault

FEATURES = GOLDEN / "features"
JOBS = {"digits-ddp": EXAMPLE, "everything": EVERYTHING, "plain": FEATURES / "plain.yaml"}
JOBS["own-script"] = OWN_SCRIPT


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Replace files that travel by short texts, so that not every change of code changes goldens."""

    def packed(folder: Path, *, label: str, via: str, output: Path | None = None) -> Archive:
        return replace(
            pack(folder, label=label, via=via, output=output),
            content=b"the code\n",
            commit="c0ffee" * 6 + "-dirty",
        )

    with (
        patch("k8s.render.launch_zip.build", lambda: b"the launcher\n"),
        patch("k8s.render.payload.pack", packed),
        patch("k8s.jobfile.code.hub_lock", lambda: "the lock\n"),
    ):
        yield


def names_of_features() -> list[str]:
    return sorted(path.stem for path in FEATURES.glob("*.yaml") if path.stem != "plain")


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a render.py command line in the folder of features."""
    words, errors = io.TextIOWrapper(io.BytesIO(), newline=""), io.StringIO()
    redirected = (contextlib.redirect_stdout(words), contextlib.redirect_stderr(errors))
    with contextlib.chdir(FEATURES), stand_ins(), redirected[0], redirected[1]:
        code = command.main(arguments)
    words.seek(0)
    return code, words.read(), errors.getvalue()


def document(name: str) -> str:
    """Return a feature's page: its job file, and for each launcher the command and what it changes."""
    lines = (FEATURES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    prose = [line[2:] for line in lines if line.startswith("# ")]
    body = [line for line in lines if not line.startswith("#")]
    parts = [f"# {prose[0]}", *([" ".join(prose[1:])] if prose[1:] else [])]
    parts.append(f"[{name}.yaml]({name}.yaml) on top of [plain.yaml](plain.yaml):")
    parts.append("\n".join(["```yaml", *body, "```"]))
    return "\n\n".join([*parts, *_sections(name)]) + "\n"


def options_of(name: str) -> list[str]:
    """Return the options of a feature that is no key of the job file: a line that starts with #!."""
    lines = (FEATURES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return [word for line in lines if line.startswith("#!") for word in line[2:].split()]


def _sections(name: str) -> Iterator[str]:
    same = []
    for launcher in LAUNCHERS:
        suffix = next(path.suffix for path in (GOLDEN / "plain").glob(f"{launcher}.*"))
        old = f"../plain/{launcher}{suffix}"
        asked = ["plain.yaml", f"{name}.yaml", *options_of(name)]
        asked += ["--launcher", launcher, "--diff", old]
        code, changes, refusal = run(*asked)
        if code == 0:
            same.append(launcher)
            continue
        parts = [f"## {launcher}", f"```sh\nrender.py {' '.join(asked)}\n```"]
        if code == 1:
            parts.append(f"```diff\n{changes}```")
        else:
            parts.append(f"```text\n{refusal}```")
        yield "\n\n".join(parts)
    if same:
        yield f"Nothing changes on {', '.join(same)}."


def index() -> str:
    """Return the page that lists the features."""
    rows = []
    for name in names_of_features():
        title = (FEATURES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        rows.append(f"| [{name}]({name}.md) | {title.removeprefix('# ')} |")
    head = "# What a job file can say\n\nEach on every launcher, or refused with the reason.\n\n"
    return head + "\n".join(["| page | shows |", "|---|---|", *rows]) + "\n"


def of_clusters() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield the name, the job file's values and the rendering of each golden of cluster launchers.

    First come the whole jobs, then the jobs of frameworks and of the pages.
    """
    for path in sorted(GOLDEN.glob("*/*.yaml")):
        if path.stem in CLUSTER and path.parent != FEATURES:
            text = path.read_text(encoding="utf-8")
            objects = tuple(yaml.load_all(text, yaml.CSafeLoader))
            values = everything(path.stem, JOBS[path.parent.name])
            made = SimpleNamespace(text=text, objects=objects)
            yield f"{path.parent.name}/{path.name}", values, made
    with contextlib.chdir(SCRIPTS):
        for framework in FRAMEWORKS:
            for launcher in CLUSTER:
                values = job_of(framework)
                yield f"{framework} on {launcher}", values, render(values, launcher)
    for name in names_of_features():
        options = options_of(name)
        under = [load.profile(part) for part in options[1:] if options[0] == "--profile"]
        files = [str(FEATURES / f"{part}.yaml") for part in ("plain", name)]
        values = load.read([*under, *files]).values
        for launcher in CLUSTER:
            with contextlib.suppress(Fault):  # its text is on the page
                yield f"{name} on {launcher}", values, render(values, launcher)


def write_jobs(folder: Path) -> None:
    """Write the renderings of whole job files, without what the launcher does not support."""
    for name, path in JOBS.items():
        for launcher in LAUNCHERS:
            settings = [part for key in without(launcher, path) for part in ("--set", key)]
            arguments = [str(path.relative_to(ROOT)), "--launcher", launcher, *settings]
            with contextlib.chdir(ROOT), stand_ins():
                assert command.main([*arguments, "-o", str(folder / name)]) == 0


def pages() -> dict[str, str]:
    """Return the pages of the features by their files' names."""
    return {f"{name}.md": document(name) for name in names_of_features()} | {"README.md": index()}


if __name__ == "__main__":
    write_jobs(GOLDEN)
    for file, text in pages().items():
        (FEATURES / file).write_text(text, encoding="utf-8")
