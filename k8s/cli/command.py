"""The command line of render.py: does all that is asked for, or refuses it in one line.

render.py k8s/jobs/02-digits-ddp.yaml --launcher job --launcher pytorchjob -o build/digits-ddp
"""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from k8s import launchers
from k8s.base.errors import config_error
from k8s.base.yaml_text import dump, read, read_text
from k8s.cli import explain, options
from k8s.cli.schema import json_schema
from k8s.jobfile import load
from k8s.jobfile.spec import JobSpec
from k8s.jobfile.validate import validate
from k8s.plan.model import Payload
from k8s.render import files, manifests
from k8s.render.manifests import Rendered
from k8s.render.payload import make_payload
from trainer.config.exits import Exit, Fault
from trainer.config.printable import printable

_MANY = 100  # job files in one call; from here on several processes are faster

Files = tuple[
    str, list[tuple[str, str | bytes]]
]  # a job's name, and the path and content of each of its files


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        code = _run(options.parser().parse_args(arguments))
        sys.stdout.flush()
    except Fault as fault:
        print(f"render.py: {printable(str(fault))}", file=sys.stderr)
        return fault.code
    except BrokenPipeError:
        # The reader has closed the pipe, e.g. head. Python would fail again at the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code


def _run(asked: argparse.Namespace) -> int:
    if _print_instead(asked):
        return Exit.DONE
    options.check_together(asked)
    profiles = [load.profile(name) for name in asked.profile]
    if not asked.each:
        return _output(_render([*profiles, *asked.jobs], asked), asked)
    each = [[*profiles, path] for path in asked.jobs]
    if asked.output and not (asked.plan or asked.check):
        made = _map(partial(_render_to_files, asked=asked), each)
        _check_names([name for name, _ in made], asked.jobs)
        files.write(asked.output, [file for _, files in made for file in files])
    else:
        jobs = [_render(paths, asked) for paths in each]
        _check_names([job[0].plan.name for job in jobs], asked.jobs)
        for job in jobs:
            _output(job, asked)
    return Exit.DONE


def _print_instead(asked: argparse.Namespace) -> bool:
    """Print what was asked for in place of a rendered job; return whether there was such a thing."""
    if asked.schema:
        print(json.dumps(json_schema(), indent=2))
    elif asked.explain is not None:
        print(explain.explain(asked.explain))
    elif asked.migrate is not None:
        from k8s.cli.migrate import print_migrated  # noqa: PLC0415  # rarely used

        print_migrated(asked.migrate)
    elif asked.init:
        from k8s.cli.init import print_init  # noqa: PLC0415  # rarely used

        print_init(Path())
    elif asked.from_torchrun:
        from k8s.cli.from_torchrun import print_from_torchrun  # noqa: PLC0415  # rarely used

        print_from_torchrun(asked.jobs)
    else:
        return False
    return True


def _map(render: Callable[[list[str]], Files], jobs: list[list[str]]) -> list[Files]:
    """Render every job; many of them in as many processes as there are processors."""
    if len(jobs) < _MANY:
        return [render(paths) for paths in jobs]
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  # rarely used

    with ProcessPoolExecutor() as pool:
        return list(pool.map(render, jobs, chunksize=_MANY // 4))


def _render_to_files(paths: list[str], asked: argparse.Namespace) -> Files:
    rendered = _render(paths, asked)
    return rendered[0].plan.name, _files(rendered, asked)


def _render(paths: list[str], asked: argparse.Namespace) -> list[Rendered]:
    """Read a job from its files and render it for each launcher that is asked for, all or none."""
    job = load.read(paths, asked.set)
    try:
        spec = validate(job.values)
        payload = make_payload(spec, job.folder_of("code.path"))
        if asked.all:
            rendered = _render_all(spec, job, payload)
        else:
            names = dict.fromkeys(asked.launcher or [spec.launcher])
            rendered = [manifests.render(spec, launchers.find(name), payload) for name in names]
    except Fault as fault:
        raise _with_origin(fault, job, from_option=bool(asked.launcher)) from None
    for warning in payload.warnings:
        print(f"render.py: warning: {printable(warning)}", file=sys.stderr)
    if asked.owner is None:
        return rendered
    return [manifests.owned(one, asked.owner) for one in rendered]


def _render_all(spec: JobSpec, job: load.JobFile, payload: Payload) -> list[Rendered]:
    """Render for every launcher; skip those that refuse the job, unless all do."""
    rendered: list[Rendered] = []
    refusals: dict[str, Fault] = {}
    for name in launchers.known():
        try:
            rendered.append(manifests.render(spec, launchers.find(name), payload))
        except Fault as refusal:
            refusals[name] = refusal
    if not rendered:
        raise next(iter(refusals.values()))
    for name, fault in refusals.items():
        text = printable(str(_with_origin(fault, job)))
        print(f"without {name}: {text}", file=sys.stderr)
    return rendered


def _with_origin(fault: Fault, job: load.JobFile, *, from_option: bool = False) -> Fault:
    """Put the file or option in front that the key in an error's text comes from."""
    text = str(fault)
    of_launcher = from_option and text.startswith("launcher=")
    return Fault(fault.code, f"{'--launcher' if of_launcher else job.origin_of(text)}: {text}")


def _check_names(names: list[str], paths: list[str]) -> None:
    """Refuse two jobs of one name: they would overwrite each other's files and objects."""
    first: dict[str, str] = {}
    for name, path in zip(names, paths, strict=True):
        if first.setdefault(name, path) != path:
            raise config_error(f"{path}: name={name!r}: taken, first in {first[name]}")


def _files(rendered: list[Rendered], asked: argparse.Namespace) -> list[tuple[str, str | bytes]]:
    found = [file for one in rendered for file in files.files(one, split=asked.split)]
    folder = f"{rendered[0].plan.name}/" if asked.each else ""
    return [(folder + name, content) for name, content in found]


def _output(rendered: list[Rendered], asked: argparse.Namespace) -> int:
    """Print or write what was asked for: rights, a check, a plan, a difference, files, a manifest."""
    if asked.rbac is not None:
        from k8s.cluster import rbac  # noqa: PLC0415  # rarely used, and loads the client

        roles = rbac.render(rendered, asked.rbac, any_name=asked.any_name)
        sys.stdout.buffer.write(dump(roles).encode())
    elif asked.check:
        names = ", ".join(one.launcher.name for one in rendered)
        print(f"{rendered[0].plan.name}: ok for {names}")
    elif asked.plan:
        from k8s.cli import report  # noqa: PLC0415  # needed here alone

        report.print_plans(rendered, as_json=asked.json)
    elif asked.diff:
        return _diff(rendered, asked.diff)
    elif asked.output:
        files.write(asked.output, _files(rendered, asked))
    elif len(rendered) > 1:
        raise config_error("--launcher: several make several files; add -o DIR")
    else:
        sys.stdout.buffer.write(rendered[0].text.encode())  # UTF-8 in any locale
    return Exit.DONE


def _diff(rendered: list[Rendered], path: Path) -> int:
    """Print what the rendering changes in a file; formatting does not count as a change."""
    if len(rendered) > 1:
        raise config_error("--diff: compares with one launcher's file")
    (only,) = rendered
    label = f"--diff {path}"
    old = read_text(path, label=label)
    if only.objects:
        old = dump(read(old, label=label))
    new = f"{only.launcher.name}{only.launcher.suffix}"
    changes = list(
        difflib.unified_diff(old.splitlines(), only.text.splitlines(), str(path), new, lineterm="")
    )
    print("\n".join(changes), end="\n" if changes else "")
    return 1 if changes else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
