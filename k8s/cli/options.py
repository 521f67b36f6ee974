"""The options of render.py, and which of them go together.

argparse, since a richer parser would take a fifth of the time of the whole process.

    render.py --help
"""

import argparse
from pathlib import Path
from typing import NoReturn

from k8s import launchers
from k8s.base.errors import config_error

_DESCRIPTION = (
    "Turn a job file into what a launcher runs: manifests for a cluster, a script for a machine."
)
_EXAMPLES = """examples:
  render.py job.yaml                                  manifests for the job file's launcher
  render.py job.yaml | kubectl apply -f -             run it
  render.py job.yaml --launcher local | sh            run it here
  render.py job.yaml --plan                           what it amounts to: pods, ranks, batches
  render.py job.yaml --profile eks-p5-efa             on what a site has; later files win
  render.py site.yaml job.yaml --set nodes=4 --set trainer.lr=0.1 --set trainer.steps=
                                                      a later file and --set win, an empty value unsets
  render.py job.yaml --launcher job --launcher pytorchjob -o build
                                                      build/job.yaml and build/pytorchjob.yaml
  render.py job.yaml --all -o build                   one file for every launcher
  render.py jobs/*.yaml --each -o build               every file a job of its own: build/NAME/job.yaml
  render.py job.yaml --split -o build                 one file per object, and a kustomization.yaml
  render.py job.yaml --diff build/job.yaml            what would change
  render.py --init > job.yaml                         a job file for the script in this folder
  render.py --migrate pytorchjob.yaml > job.yaml      a job file from a manifest
  render.py --from-torchrun -- torchrun --nproc-per-node 8 train.py > job.yaml
                                                      a job file from a command line
  render.py job.yaml --rbac user:jane                 the Role that `python -m k8s` takes on it, for jane
  render.py --explain scheduling.queue                what a key means
  render.py --schema > job.schema.json                for an editor

Exit code 64 and one line when something is wrong; then nothing is written."""


class _Parser(argparse.ArgumentParser):
    """argparse whose error is one line, with exit code 64."""

    def error(self, message: str) -> NoReturn:
        raise config_error(f"{message}; --help shows how")


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="render.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("jobs", metavar="JOB.yaml", nargs="*", help="job files, merged left to right")
    add(
        "--launcher",
        metavar="L",
        action="append",
        help=f"{', '.join(launchers.known())}; repeatable (default: the job file's launcher)",
    )
    add(
        "--profile",
        metavar="NAME",
        action="append",
        default=[],
        help="what a site has, of k8s/profiles, put under the job files; repeatable",
    )
    add(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key; repeatable"
    )
    add("-o", "--output", metavar="DIR", type=Path, help="write DIR/LAUNCHER.yaml or .sh")
    add("--all", action="store_true", help="for every launcher that has what the job asks for")
    add(
        "--each",
        action="store_true",
        help="every file, or each job of its matrix, is one of its own: DIR/NAME/...",
    )
    add("--split", action="store_true", help="one file per object: DIR/LAUNCHER/KIND-NAME.yaml")
    add(
        "--owner",
        metavar="UID",
        help="uid of the job in the cluster: the other objects are deleted with it",
    )
    add(
        "--plan",
        action="store_true",
        help="print the plan (pods, ranks, batches), and write nothing",
    )
    add("--json", action="store_true", help="with --plan: for programs")
    add(
        "--diff", metavar="OLD", type=Path, help="what would change in OLD; exit code 1 if anything"
    )
    add(
        "--rbac",
        metavar="WHO",
        help="the Role to operate the job: user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME",
    )
    add(
        "--any-name",
        action="store_true",
        help="with --rbac: for jobs of every name, so also for other objects of these kinds",
    )
    add(
        "--exec",
        action="store_true",
        help="with --rbac: to run anything in pods, too, which `profile` and `sync` take",
    )
    add("--explain", metavar="KEY", help="print what a key means, e.g. scheduling.queue")
    add(
        "--migrate",
        metavar="FILE",
        type=Path,
        help="print the job file that a PyTorchJob, TrainJob, JobSet or Job is",
    )
    add(
        "--from-torchrun",
        action="store_true",
        help="print the job file that a command line is: -- torchrun ...",
    )
    add(
        "--init",
        action="store_true",
        help="print a job file for the script in this folder, with what was guessed",
    )
    add(
        "--check",
        action="store_true",
        help="render everything, try the task on two samples where torch is, write nothing, print ok",
    )
    add("--schema", action="store_true", help="print the JSON Schema of a job file")
    return made


def check_together(options: argparse.Namespace) -> None:
    """Refuse options that do not go together. Raises Fault(64)."""
    somewhere = options.output or options.plan or options.check
    wrong = {
        "no job file; e.g. render.py k8s/jobs/02-digits-ddp.yaml": not options.jobs,
        "--json: goes with --plan": options.json and not options.plan,
        "--any-name: goes with --rbac": options.any_name and options.rbac is None,
        "--exec: goes with --rbac": options.exec and options.rbac is None,
        "--all: stands for every launcher; leave out --launcher": options.all and options.launcher,
        "--all: makes several files; add -o DIR": options.all and not somewhere,
        "--each: makes several files; add -o DIR": options.each and not somewhere,
        "--split: makes several files; add -o DIR": options.split and not options.output,
        "--diff: compares with one file; leave out --each": options.diff and options.each,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise config_error(message)
