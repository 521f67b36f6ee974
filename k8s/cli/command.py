"""The command line of render.py: what was asked for, done in full or refused in one line.

render.py k8s/jobs/digits-ddp.yaml --launcher job --launcher pytorchjob -o build/digits-ddp
"""

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from k8s import launchers
from k8s.cli import explain, options
from k8s.cli.schema import json_schema
from k8s.jobfile import load, spec, validate
from k8s.plan import make
from k8s.render import files, manifests
from k8s.render.files import Planned
from trainer.config.exits import Exit, Fault

# Job files in one call from which on more processes are worth their start.
_MANY = 100

# A job's name and its files: where, and what is in them.
Made = tuple[str, list[tuple[str, str]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        code = _run(options.parser().parse_args(arguments))
        sys.stdout.flush()
    except Fault as fault:
        print(f"render.py: {_in_one_line(str(fault))}", file=sys.stderr)
        return fault.code
    except BrokenPipeError:
        # Whoever read the output has enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code


def _in_one_line(text: str) -> str:
    """Spell out line ends and other control characters, which a key may hold."""
    return re.sub(r"[\0-\x1f\x7f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def _run(asked: argparse.Namespace) -> int:
    if asked.schema:
        print(json.dumps(json_schema(), indent=2))
        return Exit.DONE
    if asked.explain is not None:
        print(explain.explain(asked.explain))
        return Exit.DONE
    if asked.migrate is not None:
        from k8s.cli.migrate import show  # noqa: PLC0415  # hardly ever wanted

        show(asked.migrate)
        return Exit.DONE
    options.check_together(asked)
    under = [load.profile(name) for name in asked.profile]
    if not asked.each:
        return _show(_planned([*under, *asked.jobs], asked), asked)
    each = [[*under, path] for path in asked.jobs]
    if asked.output and not (asked.plan or asked.check):
        made = _shared_out(partial(_made, asked=asked), each)
        _check_names([name for name, _ in made], asked.jobs)
        files.write(asked.output, [file for _, files in made for file in files])
    else:
        jobs = [_planned(paths, asked) for paths in each]
        _check_names([job[0][0].name for job in jobs], asked.jobs)
        for job in jobs:
            _show(job, asked)
    return Exit.DONE


def _shared_out(make: Callable[[list[str]], Made], jobs: list[list[str]]) -> list[Made]:
    """Make every job's files, many of them by as many processes as there are processors."""
    if len(jobs) < _MANY:
        return [make(paths) for paths in jobs]
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  # hardly ever wanted

    with ProcessPoolExecutor() as pool:
        return list(pool.map(make, jobs, chunksize=_MANY // 4))


def _made(paths: list[str], asked: argparse.Namespace) -> Made:
    planned = _planned(paths, asked)
    return planned[0][0].name, _files(planned, asked)


def _planned(paths: list[str], asked: argparse.Namespace) -> list[Planned]:
    job = load.read(paths, asked.set)
    planned = _plan_each(job) if asked.all else _plan_all(job, asked.launcher)
    if asked.owner is None:
        return planned
    return [(made, how, manifests.owned(text, asked.owner)) for made, how, text in planned]


def _check_names(names: list[str], paths: list[str]) -> None:
    """Refuse two jobs of one name, since they would be one another's files and objects."""
    first: dict[str, str] = {}
    for name, path in zip(names, paths, strict=True):
        if first.setdefault(name, path) != path:
            raise Fault(Exit.CONFIG, f"{path}: name={name!r}: taken, first in {first[name]}")


def _files(planned: list[Planned], asked: argparse.Namespace) -> list[tuple[str, str]]:
    found = [file for one in planned for file in files.files(one, split=asked.split)]
    return [(f"{planned[0][0].name}/{name}" if asked.each else name, text) for name, text in found]


def _show(planned: list[Planned], asked: argparse.Namespace) -> int:
    if asked.rbac is not None:
        from k8s.base.yaml_text import dump  # noqa: PLC0415
        from k8s.cluster import rbac  # noqa: PLC0415  # hardly ever wanted, and loads the client

        made = rbac.render([(plan, launcher) for plan, launcher, _ in planned], asked.rbac)
        sys.stdout.buffer.write(dump(made).encode())
    elif asked.check:
        print(f"{planned[0][0].name}: ok for {', '.join(p.launcher for p, _, _ in planned)}")
    elif asked.plan:
        from k8s.cli import report  # noqa: PLC0415  # needed here alone

        report.print_plans(planned, as_json=asked.json)
    elif asked.diff:
        return _diff(planned, asked.diff)
    elif asked.output:
        files.write(asked.output, _files(planned, asked))
    elif len(planned) > 1:
        raise Fault(Exit.CONFIG, "--launcher: several make several files; add -o DIR")
    else:
        sys.stdout.buffer.write(planned[0][2].text.encode())  # UTF-8 whatever the locale
    return Exit.DONE


def _plan_all(job: load.JobFile, wanted: list[str] | None) -> list[Planned]:
    """Plan and render for every launcher, so that a refusal comes before the first file."""
    try:
        checked = validate.validate(job.values)
        return [_plan(checked, name) for name in dict.fromkeys(wanted or [checked.launcher])]
    except Fault as fault:
        from_option = wanted and str(fault).startswith("launcher=")
        origin = "--launcher" if from_option else job.origin_of(str(fault))
        raise Fault(fault.code, f"{origin}: {fault}") from None


def _plan_each(job: load.JobFile) -> list[Planned]:
    """Plan and render for every launcher; one that refuses is passed over, unless all do."""
    planned: list[Planned] = []
    refusals: dict[str, Fault] = {}
    for name in launchers.known():
        try:
            planned += _plan_all(job, [name])
        except Fault as refusal:
            refusals[name] = refusal
    if not planned:
        raise next(iter(refusals.values()))
    for name, why in refusals.items():
        print(f"without {name}: {_in_one_line(str(why))}", file=sys.stderr)
    return planned


def _diff(planned: list[Planned], path: Path) -> int:
    """Print what the rendering changes in a file; how a file is written is no change."""
    if len(planned) > 1:
        raise Fault(Exit.CONFIG, "--diff: compares with one launcher's file")
    _, launcher, rendered = planned[0]
    try:
        old = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise Fault(Exit.CONFIG, f"--diff {path}: {why}") from None
    if rendered.objects:
        old = manifests.rewritten(old, name=f"--diff {path}")
    new = f"{launcher.name}{launcher.suffix}"
    lines = difflib.unified_diff(
        old.splitlines(), rendered.text.splitlines(), str(path), new, lineterm=""
    )
    changes = list(lines)
    print("\n".join(changes), end="\n" if changes else "")
    return 1 if changes else Exit.DONE


def _plan(checked: spec.JobSpec, name: str) -> Planned:
    launcher = launchers.find(name)
    made = make.make(checked, launcher)
    return made, launcher, manifests.render(made, launcher)
