"""The command `muster`: every command of this kit under one name, once the kit is installed.

pip install .
muster render job.yaml --plan          # python render.py job.yaml --plan
muster status digits-ddp               # python -m k8s status digits-ddp
muster train                           # python -m trainer
"""

import runpy
import sys
from pathlib import Path

import trainer  # noqa: F401  # now: the current folder may have a trainer.py of its own

# The commands that are not verbs of python -m k8s: their module, and what they do.
COMMANDS = {
    "render": ("k8s.cli.command", "render a job file to manifests for a cluster, or to a script"),
    "train": ("trainer", "train in this process"),
    "launch": ("trainer.launch", "train with several ranks here, or start your own script"),
    "check": ("trainer.check", "check your own task on two samples"),
    "preflight": ("trainer.preflight", "check this machine, and the links between ranks"),
    "export": ("trainer.export", "write a checkpoint's weights to one safetensors file"),
    "report": ("trainer.report", "write one HTML file about one or more runs"),
    "runs": ("trainer.runs", "list the runs below a folder: how each ended, result, time, goodput"),
    "health": ("trainer.health", "check the signs of life, for a liveness probe"),
}


def main() -> int:
    """Run a command of COMMANDS; pass any other to `python -m k8s`. Return the exit code."""
    sys.argv += ["--help"] if len(sys.argv) == 1 else []
    name = sys.argv[1]
    if name in ("-h", "--help"):
        print("usage: muster COMMAND ...; each has its own --help\n")
        print("\n".join(f"  {command:11}{about}" for command, (_, about) in COMMANDS.items()))
        print("\nand on a cluster:\n", flush=True)
    module, _ = COMMANDS.get(name, ("k8s", ""))
    if name in COMMANDS:
        sys.argv[:2] = [f"muster {name}"]
    sys.path.insert(0, str(Path.cwd()))  # as python -m does, to find the user's own task
    runpy.run_module(module, run_name="__main__")
    return 0
