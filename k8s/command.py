"""The command line of render.py: what was asked for, done in full or refused in one line.

argparse, since a richer parser would take a fifth of the time of the whole process.

    render.py k8s/jobs/digits-ddp.yaml --launcher job --launcher pytorchjob -o build/digits-ddp
"""

import argparse
import contextlib
import difflib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from k8s import check, explain, jobfile, launchers, manifests, plan, report, spec
from trainer.exits import Exit, Fault

_DESCRIPTION = (
    "Turn a job file into what a launcher runs: manifests for a cluster, a script for a machine."
)
_EXAMPLES = """examples:
  render.py job.yaml                                  manifests for the job file's launcher
  render.py job.yaml | kubectl apply -f -             run it
  render.py job.yaml --launcher local | sh            run it here
  render.py job.yaml --plan                           what it amounts to: pods, ranks, batches
  render.py site.yaml job.yaml --set nodes=4 --set trainer.lr=0.1 --set trainer.steps=
                                                      a later file and --set win, an empty value unsets
  render.py job.yaml --launcher job --launcher pytorchjob -o build
                                                      build/job.yaml and build/pytorchjob.yaml
  render.py job.yaml --all -o build                   one file for every launcher
  render.py job.yaml --diff build/job.yaml            what would change
  render.py --explain scheduling.queue                what a key means
  render.py --schema > job.schema.json                for an editor

Exit code 64 and one line when something is wrong; then nothing is written."""

_Planned = tuple[plan.Plan, launchers.Launcher, manifests.Rendered]


class _Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one line, with this kit's exit code."""

    def error(self, message: str) -> NoReturn:
        raise Fault(Exit.CONFIG, f"{message}; --help shows how")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        code = _run(_parser().parse_args(arguments))
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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="render.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("jobs", metavar="JOB.yaml", nargs="*", help="job files, merged left to right")
    add(
        "--launcher",
        metavar="L",
        action="append",
        help=f"{', '.join(launchers.known())}; repeatable (default: the job file's launcher)",
    )
    add(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key; repeatable"
    )
    add("-o", "--output", metavar="DIR", type=Path, help="write DIR/LAUNCHER.yaml or .sh")
    add("--plan", action="store_true", help="say what the job amounts to, and write nothing")
    add("--json", action="store_true", help="with --plan: for programs")
    add("--all", action="store_true", help="for every launcher that has what the job asks for")
    add(
        "--diff", metavar="OLD", type=Path, help="what would change in OLD; exit code 1 if anything"
    )
    add("--explain", metavar="KEY", help="say what a key means, e.g. scheduling.queue")
    add("--check", action="store_true", help="render everything, write nothing, say ok")
    add("--schema", action="store_true", help="print the JSON Schema of a job file")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.schema:
        print(json.dumps(check.json_schema(), indent=2))
        return Exit.DONE
    if options.explain is not None:
        print(explain.explain(options.explain))
        return Exit.DONE
    if not options.jobs:
        raise Fault(Exit.CONFIG, "no job file; e.g. render.py k8s/jobs/digits-ddp.yaml")
    if options.json and not options.plan:
        raise Fault(Exit.CONFIG, "--json: goes with --plan")
    if options.all and options.launcher:
        raise Fault(Exit.CONFIG, "--all: stands for every launcher; leave out --launcher")
    if options.all and not (options.output or options.plan or options.check):
        raise Fault(Exit.CONFIG, "--all: makes several files; add -o DIR")
    job = jobfile.read(options.jobs, options.set)
    return _show(_plan_each(job) if options.all else _plan_all(job, options.launcher), options)


def _show(planned: list[_Planned], options: argparse.Namespace) -> int:
    if options.check:
        print(f"{planned[0][0].name}: ok for {', '.join(p.launcher for p, _, _ in planned)}")
    elif options.plan and options.json:
        print(report.as_json(planned))
    elif options.plan:
        for one in planned:
            report.show(*one)
    elif options.diff:
        return _diff(planned, options.diff)
    elif options.output:
        _write(planned, options.output)
    elif len(planned) > 1:
        raise Fault(Exit.CONFIG, "--launcher: several make several files; add -o DIR")
    else:
        sys.stdout.buffer.write(planned[0][2].text.encode())  # UTF-8 whatever the locale
    return Exit.DONE


def _plan_all(job: jobfile.JobFile, wanted: list[str] | None) -> list[_Planned]:
    """Plan and render for every launcher, so that a refusal comes before the first file."""
    try:
        checked = check.validate(job.values)
        return [_plan(checked, name) for name in dict.fromkeys(wanted or [checked.launcher])]
    except Fault as fault:
        from_option = wanted and str(fault).startswith("launcher=")
        origin = "--launcher" if from_option else job.origin_of(str(fault))
        raise Fault(fault.code, f"{origin}: {fault}") from None


def _plan_each(job: jobfile.JobFile) -> list[_Planned]:
    """Plan and render for every launcher; one that refuses is passed over, unless all do."""
    planned: list[_Planned] = []
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


def _diff(planned: list[_Planned], path: Path) -> int:
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


def _plan(checked: spec.JobSpec, name: str) -> _Planned:
    launcher = launchers.find(name)
    made = plan.make(checked, launcher)
    return made, launcher, manifests.render(made, launcher)


def _write(planned: list[_Planned], folder: Path) -> None:
    """Write every launcher's file beside its place first, then move all into place."""
    moves: list[tuple[Path, Path]] = []
    with contextlib.ExitStack() as cleanup:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for made, launcher, rendered in planned:
                handle, name = tempfile.mkstemp(dir=folder, prefix=f".{made.launcher}.")
                cleanup.callback(Path(name).unlink, missing_ok=True)
                with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                    file.write(rendered.text)
                Path(name).chmod(0o644 if launcher.suffix == ".yaml" else 0o755)
                moves.append((Path(name), folder / f"{made.launcher}{launcher.suffix}"))
            for source, target in moves:
                source.replace(target)
        except OSError as error:
            raise Fault(Exit.CONFIG, f"-o {folder}: {error.strerror}") from None
    for _, target in moves:
        print(f"wrote {target}", file=sys.stderr)
