"""The command `muster`: every command of this kit under one name, where it is installed.

pip install .
muster render job.yaml --plan          # python render.py job.yaml --plan
muster status digits-ddp               # python -m k8s status digits-ddp
muster train                           # python -m trainer
"""

import runpy
import sys
from pathlib import Path

# What is no verb of python -m k8s: the module, and what it is for.
COMMANDS = {
    "render": ("k8s.cli.command", "a job file as manifests for a cluster, or as a script"),
    "train": ("trainer", "train here, in this process"),
    "launch": ("trainer.launch", "train here with several ranks, or start a program of your own"),
    "check": ("trainer.check", "check a task of your own on two samples"),
    "preflight": ("trainer.preflight", "check this machine, and the links between ranks"),
    "export": ("trainer.export", "a checkpoint's weights as one safetensors file"),
    "report": ("trainer.report", "what happened in a run, or in several, as one HTML file"),
    "runs": ("trainer.runs", "the runs below a folder: how each ended, result, time, goodput"),
    "health": ("trainer.health", "what a liveness probe asks"),
}


def main() -> int:
    """Run the command that is named; anything else goes to `python -m k8s`. Return the exit code."""
    sys.argv += ["--help"] if len(sys.argv) == 1 else []
    name = sys.argv[1]
    if name in ("-h", "--help"):
        print("usage: muster COMMAND ...; each has a --help of its own\n")
        print("\n".join(f"  {command:11}{about}" for command, (_, about) in COMMANDS.items()))
        print("\nand on a cluster:\n", flush=True)
    module, _ = COMMANDS.get(name, ("k8s", ""))
    if name in COMMANDS:
        sys.argv[:2] = [f"muster {name}"]
    sys.path.insert(0, str(Path.cwd()))  # as python -m does: a task of one's own is found there
    runpy.run_module(module, run_name="__main__")
    return 0
