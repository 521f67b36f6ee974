"""The options of render.py, and checks of options that exclude or need each other.

We use argparse because a richer parser would take a fifth of the time of the whole process.

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
  render.py job.yaml --plan                           the plan: pods, ranks, batches
  render.py job.yaml --profile eks-p5-efa             with a site's keys; the job file overrides them
  render.py site.yaml job.yaml --set nodes=4 --set trainer.lr=0.1 --set trainer.steps=
                                                      later files win, then --set; an empty value unsets
  render.py job.yaml --launcher job --launcher pytorchjob -o build
                                                      build/job.yaml and build/pytorchjob.yaml
  render.py job.yaml --all -o build                   one file for every launcher
  render.py jobs/*.yaml --each -o build               each file is a separate job: build/NAME/job.yaml
  render.py job.yaml --split -o build                 one file per object, and a kustomization.yaml
  render.py job.yaml --diff build/job.yaml            what would change
  render.py --init > job.yaml                         a job file for the script in this folder
  render.py --migrate pytorchjob.yaml > job.yaml      a job file from a manifest
  render.py --from-torchrun -- torchrun --nproc-per-node 8 train.py > job.yaml
                                                      a job file from a command line
  render.py job.yaml --rbac user:jane                 the Role that jane needs to operate the job
  render.py --explain scheduling.queue                what a key means
  render.py --schema > job.schema.json                the JSON Schema, for an editor

If something is wrong, render.py prints one line, writes nothing and exits with 64."""


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
        help="a site's keys, from k8s/profiles; the job files override them; repeatable",
    )
    add(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key; repeatable"
    )
    add("-o", "--output", metavar="DIR", type=Path, help="write DIR/LAUNCHER.yaml or .sh")
    add("--all", action="store_true", help="render for every launcher that supports the job")
    add(
        "--each",
        action="store_true",
        help="do not merge the files: each is a job, or a matrix of jobs; write DIR/NAME/...",
    )
    add("--split", action="store_true", help="write DIR/LAUNCHER/KIND-NAME.yaml for each object")
    add(
        "--owner",
        metavar="UID",
        help="uid of the job object in the cluster, which then deletes the other objects with it",
    )
    add(
        "--plan",
        action="store_true",
        help="print the plan (pods, ranks, batches), and write nothing",
    )
    add("--json", action="store_true", help="with --plan: print JSON")
    add(
        "--diff",
        metavar="OLD",
        type=Path,
        help="print what would change in the file OLD; exit code 1 if anything would",
    )
    add(
        "--rbac",
        metavar="WHO",
        help="print the Role to operate the job, for user:NAME, group:NAME or "
        "serviceaccount:NAMESPACE:NAME",
    )
    add(
        "--any-name",
        action="store_true",
        help="with --rbac: for jobs of every name; it then covers all objects of these kinds",
    )
    add(
        "--exec",
        action="store_true",
        help="with --rbac: add the right to run anything in pods, which `profile` and `sync` need",
    )
    add("--explain", metavar="KEY", help="print what a key means, e.g. scheduling.queue")
    add(
        "--migrate",
        metavar="FILE",
        type=Path,
        help="print a job file made from a PyTorchJob, TrainJob, JobSet or Job",
    )
    add(
        "--from-torchrun",
        action="store_true",
        help="print a job file made from a command line: -- torchrun ...",
    )
    add(
        "--init",
        action="store_true",
        help="print a job file for the script in this folder; notes say what was guessed",
    )
    add(
        "--check",
        action="store_true",
        help="render, try the task on two samples if torch is installed, print ok, write nothing",
    )
    add("--schema", action="store_true", help="print the JSON Schema of a job file")
    return made


def check_together(options: argparse.Namespace) -> None:
    """Refuse options that exclude each other, or lack one that they need. Raises Fault(64)."""
    somewhere = options.output or options.plan or options.check or options.rbac is not None
    wrong = {
        "no job file; e.g. render.py k8s/jobs/02-digits-ddp.yaml": not options.jobs,
        "--json: goes with --plan": options.json and not options.plan,
        "--any-name: goes with --rbac": options.any_name and options.rbac is None,
        "--exec: goes with --rbac": options.exec and options.rbac is None,
        "--all: means every launcher; leave out --launcher": options.all and options.launcher,
        "--all: makes several files; add -o DIR": options.all and not somewhere,
        "--each: makes several files; add -o DIR": options.each and not somewhere,
        "--split: makes several files; add -o DIR": options.split and not options.output,
        "--diff: compares one job with one file; leave out --each": options.diff and options.each,
        "--owner: is empty; give the uid of a job in the cluster": options.owner == "",
        "--owner: is the uid of one object; leave out --each": options.owner and options.each,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise config_error(message)
