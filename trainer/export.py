"""Write a checkpoint's weights to one safetensors file, for inference and for other tools.

python -m trainer.export runs/digits/checkpoints/step-00000900 -o digits.safetensors
"""

import argparse
import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

from trainer.config.exits import Exit, Fault

_HELP = """
Reads the checkpoint through, compares its checksums, and writes every tensor of the model whole and in
the precision that it was trained in, under the names that model.state_dict() gives them:

  import safetensors.torch
  model.load_state_dict(safetensors.torch.load_file("digits.safetensors"))

The file's metadata say task, step and samples. What mode and how many ranks wrote the checkpoint makes
no difference. exit codes: 0 done, 64 wrong arguments, 65 the checkpoint is damaged, 71 the file cannot
be written.
"""


def main(arguments: list[str] | None = None) -> int:
    """Export as the arguments say and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.export",
        description="Write a checkpoint's weights to one safetensors file.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint",
        help="a checkpoint's folder or URL, such as runs/digits/checkpoints/step-00000900",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--ema", action="store_true", help="the averaged weights of a run with TRAINER_EMA_DECAY"
    )
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as stop:
        return Exit.CONFIG if stop.code else Exit.DONE
    try:
        export(chosen.checkpoint, chosen.out, averaged=chosen.ema)
    except Fault as fault:
        print(f"export: {fault} (exit {fault.code})", file=sys.stderr)
        return fault.code
    return Exit.DONE


def export(checkpoint: str, out: Path, *, averaged: bool = False) -> None:
    """Write a checkpoint's weights to `out`, which appears only once it is whole.

    `averaged` takes those that the run averaged (TRAINER_EMA_DECAY) in place of the last step's.
    Raises Fault(64) when there are none, Fault(65) for a damaged checkpoint and Fault(71) when the
    file cannot be written.
    """
    # torch takes seconds to import; --help and wrong arguments do without.
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    from trainer.checkpoint.find import complete  # noqa: PLC0415
    from trainer.checkpoint.read import whole  # noqa: PLC0415

    found = complete(checkpoint)
    keys = _below("model.", found.manifest.tensors)
    if averaged:
        average = _below("extra.ema.", found.manifest.tensors)
        if not average:
            raise Fault(Exit.CONFIG, f"{found.where}: its run kept no averaged weights")
        keys |= average
    progress = found.manifest.progress
    described = {"format": "pt", "task": progress.task, "step": str(progress.step)}
    described["samples"] = str(progress.samples)
    partial = out.with_name(f".{out.name}.partial")
    try:
        tensors = {name: whole(found, key) for name, key in keys.items()}
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, described)
        partial.replace(out)
    except (OSError, SafetensorError) as error:  # the latter is what a full disk amounts to there
        with contextlib.suppress(OSError):
            partial.unlink()
        reason = getattr(error, "strerror", None) or error
        raise Fault(Exit.MACHINE, f"{out}: cannot be written: {reason}") from error
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"{out}: {len(tensors)} tensors, {size:,} bytes, of {found.where}")


def _below(prefix: str, keys: Iterable[str]) -> dict[str, str]:
    """Return the keys that begin with `prefix`, by what follows it."""
    return {key.removeprefix(prefix): key for key in keys if key.startswith(prefix)}


if __name__ == "__main__":
    sys.exit(main())
