"""The command line of render.py: what was asked for, done in full or refused in one line.

argparse, since a richer parser would take a fifth of the time of the whole process.

    render.py k8s/jobs/digits-ddp.yaml --launcher job --launcher pytorchjob -o build/digits-ddp
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from k8s import jobfile, launchers, manifests, plan, report, spec
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
    add("--check", action="store_true", help="render everything, write nothing, say ok")
    add("--schema", action="store_true", help="print the JSON Schema of a job file")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.schema:
        print(json.dumps(spec.json_schema(), indent=2))
        return Exit.DONE
    if not options.jobs:
        raise Fault(Exit.CONFIG, "no job file; e.g. render.py k8s/jobs/digits-ddp.yaml")
    if options.json and not options.plan:
        raise Fault(Exit.CONFIG, "--json: goes with --plan")
    planned = _plan_all(jobfile.read(options.jobs, options.set), options.launcher)
    if options.check:
        print(f"{planned[0][0].name}: ok for {', '.join(p.launcher for p, _, _ in planned)}")
    elif options.plan and options.json:
        print(report.as_json(planned))
    elif options.plan:
        for one in planned:
            report.show(*one)
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
        checked = spec.validate(job.values)
        return [_plan(checked, name) for name in dict.fromkeys(wanted or [checked.launcher])]
    except Fault as fault:
        from_option = wanted and str(fault).startswith("launcher=")
        origin = "--launcher" if from_option else job.origin_of(str(fault))
        raise Fault(fault.code, f"{origin}: {fault}") from None


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
