"""The command line of render.py: does what the options ask for, or prints one line that says why not.

render.py k8s/jobs/02-digits-ddp.yaml --launcher job --launcher pytorchjob -o build/digits-ddp
"""

import argparse
import difflib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from k8s import launchers
from k8s.base.errors import config_error
from k8s.base.yaml_text import dump, read, read_text
from k8s.cli import explain, options
from k8s.cli.schema import json_schema
from k8s.jobfile import load
from k8s.jobfile.spec import MAX_PARALLEL, JobSpec
from k8s.jobfile.validate import validate
from k8s.plan import matrix
from k8s.plan.matrix import Cell
from k8s.plan.model import Payload
from k8s.render import files, manifests
from k8s.render.manifests import Rendered
from k8s.render.payload import make_payload
from trainer.config.exits import Exit, Fault
from trainer.config.printable import printable

_MANY = 100  # job files in one call; with so many or more, several processes are faster

# A job's name, its file, and the path and content of each file that is written.
Files = tuple[str, str, list[tuple[str, str | bytes]]]


@dataclass(frozen=True)
class Job:
    """A job, rendered for each launcher. `path` is its job file, the last one if several are merged."""

    path: str
    cell: Cell
    rendered: list[Rendered]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        code = _run(options.parser().parse_args(arguments))
        sys.stdout.flush()
    except Fault as fault:
        print(f"render.py: {printable(str(fault))}", file=sys.stderr)
        return fault.code
    except KeyboardInterrupt:
        return 130
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
    each = [[path] for path in asked.jobs] if asked.each else [asked.jobs]
    groups = [[*profiles, *paths] for paths in each]
    if asked.output and not (asked.plan or asked.check or asked.diff or asked.rbac):
        made = [
            job for found in _map(partial(_render_to_files, asked=asked), groups) for job in found
        ]
        _check_names([(name, path) for name, path, _ in made])
        wanted = [file for _, _, content in made for file in content]
        _check_targets(asked.output, [place for place, _ in wanted], asked.jobs)
        files.write(asked.output, wanted)
        return Exit.DONE
    jobs = [job for paths in groups for job in _render(paths, asked)]
    _check_names([(job.rendered[0].plan.name, job.path) for job in jobs])
    return _output(jobs, asked)


def _print_instead(asked: argparse.Namespace) -> bool:
    """Print what an option asks for instead of a rendered job; return whether one did."""
    if asked.schema:
        print(json.dumps(json_schema(), indent=2))
    elif asked.explain is not None:
        print(explain.explain(asked.explain))
    elif asked.migrate is not None:
        from k8s.cli.migrate import print_migrated  # noqa: PLC0415  # rarely used

        print_migrated(asked.migrate)
    elif asked.init:
        from k8s.cli.init import print_init  # noqa: PLC0415  # rarely used

        print_init()
    elif asked.from_torchrun:
        from k8s.cli.from_torchrun import print_from_torchrun  # noqa: PLC0415  # rarely used

        print_from_torchrun(asked.jobs)
    else:
        return False
    return True


def _map(
    render: Callable[[list[str]], list[Files]], groups: list[list[str]]
) -> Iterable[list[Files]]:
    """Render every job file; if there are many, with one process per processor."""
    if len(groups) < _MANY:
        return [render(paths) for paths in groups]
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  # rarely used

    with ProcessPoolExecutor() as pool:
        return list(pool.map(render, groups, chunksize=_MANY // 4))


def _render_to_files(paths: list[str], asked: argparse.Namespace) -> list[Files]:
    found = []
    for job in _render(paths, asked):
        name = job.rendered[0].plan.name
        folder = f"{name}/" if asked.each or job.cell.values else ""
        split = [file for one in job.rendered for file in files.files(one, split=asked.split)]
        found.append((name, job.path, [(folder + file, content) for file, content in split]))
    return found


def _render(paths: list[str], asked: argparse.Namespace) -> list[Job]:
    """Render the job of merged files, or each job of its matrix; all of them or none."""
    job = load.read(paths, asked.set)
    try:
        cells = matrix.cells(job)
    except Fault as fault:
        raise _with_origin(fault, job) from None
    jobs = [Job(paths[-1], cell, _render_cell(cell, asked)) for cell in cells]
    if asked.owner is not None and sum(len(one.rendered) for one in jobs) > 1:
        raise config_error("--owner: is the uid of one object; render one job for one launcher")
    warnings = (text for job in jobs for text in job.rendered[0].plan.payload.warnings)
    for warning in dict.fromkeys(warnings):
        print(f"render.py: warning: {printable(warning)}", file=sys.stderr)
    return jobs


def _render_cell(cell: Cell, asked: argparse.Namespace) -> list[Rendered]:
    """Render one job for each launcher that the options or the job file name."""
    job = cell.job
    try:
        spec = validate(job.values)
        output = asked.output or (asked.diff and asked.diff.parent)
        payload = make_payload(spec, job.folder_of("code.path"), output)
        if asked.all:
            rendered = _render_all(spec, job, payload)
        else:
            names = dict.fromkeys(asked.launcher or [spec.launcher])
            rendered = [manifests.render(spec, launchers.find(name), payload) for name in names]
    except Fault as fault:
        found = _with_origin(fault, job, from_option=bool(asked.launcher))
        of_cell = f" (job {job.values['name']} of the matrix)" if cell.values else ""
        raise Fault(found.code, f"{found}{of_cell}") from None
    if cell.max_parallel is not None:
        rendered = [
            manifests.annotated(one, {MAX_PARALLEL: str(cell.max_parallel)}) for one in rendered
        ]
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
    """Prefix an error's text with the file or option that set the key in it."""
    text = str(fault)
    of_launcher = from_option and text.startswith("launcher=")
    return Fault(fault.code, f"{'--launcher' if of_launcher else job.origin_of(text)}: {text}")


def _check_names(named: list[tuple[str, str]]) -> None:
    """Refuse two jobs with the same name: they would overwrite each other's files and objects."""
    first: dict[str, str] = {}
    for name, path in named:
        if first.setdefault(name, path) != path:
            raise config_error(f"{path}: name={name!r}: already the name in {first[name]}")


def _check_targets(folder: Path, places: list[str], paths: list[str]) -> None:
    """Refuse to write over a job file, whose name may be that of a launcher, e.g. job.yaml."""
    given = {Path(path).resolve(): path for path in paths}
    for place in places:
        if path := given.get((folder / place).resolve()):
            raise config_error(f"-o {folder}: would overwrite {path}; choose another folder")


def _output(jobs: list[Job], asked: argparse.Namespace) -> int:
    """Print what was asked for: rights, a check, plans, a difference, a manifest."""
    rendered = [one for job in jobs for one in job.rendered]
    if asked.rbac is not None:
        from k8s.cluster import rbac  # noqa: PLC0415  # rarely used, and loads the client

        roles = rbac.render(rendered, asked.rbac, any_name=asked.any_name, executes=asked.exec)
        sys.stdout.buffer.write(dump(roles).encode())
    elif asked.check:
        for job in jobs:
            names = ", ".join(one.launcher.name for one in job.rendered)
            print(f"{job.rendered[0].plan.name}: ok for {names}{_try(job)}")
    elif asked.plan:
        _print_plans(jobs, asked)
    elif len(jobs) > 1:
        raise config_error(f"{jobs[0].path}: matrix: makes {len(jobs)} files; add -o DIR")
    elif asked.diff:
        return _diff(rendered, asked.diff)
    elif len(rendered) > 1:
        raise config_error("--launcher: several launchers make several files; add -o DIR")
    else:
        sys.stdout.buffer.write(rendered[0].text.encode())  # UTF-8 in any locale
    return Exit.DONE


def _try(job: Job) -> str:
    from k8s.render.try_task import try_task  # noqa: PLC0415  # needed here alone

    try:
        return try_task(job.rendered)
    except Fault as fault:
        raise _with_origin(fault, job.cell.job) from None


def _print_plans(jobs: list[Job], asked: argparse.Namespace) -> None:
    """Print the plan of each job; for a matrix, a table of its jobs and the plan of the first."""
    from k8s.cli import report  # noqa: PLC0415  # needed here alone

    if asked.json:
        return report.print_json([one for job in jobs for one in job.rendered])
    for _, of_file in itertools.groupby(jobs, key=lambda job: job.path):
        first, *others = of_file
        if first.cell.values:
            report.print_cells([job.cell for job in (first, *others)])
            others = []
        for job in (first, *others):
            report.print_plans(job.rendered)
    return None


def _diff(rendered: list[Rendered], path: Path) -> int:
    """Print what the rendering would change in a file. YAML formatting is not a change."""
    if len(rendered) > 1:
        raise config_error("--diff: compares with one launcher's file; name one with --launcher")
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
