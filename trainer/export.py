"""Write a checkpoint's weights to one safetensors file, for inference and for other tools.

python -m trainer.export runs/digits/checkpoints/step-00000900 -o digits.safetensors
"""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.arguments import Parser, run_tool
from trainer.config.exits import Exit, Fault

_HELP = """
Reads the checkpoint, checks its checksums, and writes every tensor of the model, unsharded and in the
precision of the training, under its name in model.state_dict():

  import safetensors.torch
  model.load_state_dict(safetensors.torch.load_file("digits.safetensors"))

The file's metadata contains task, step and samples. The mode and the number of ranks that wrote the
checkpoint make no difference.

exit codes: 0 done, 64 wrong arguments or complex128 weights, 65 the checkpoint is damaged, 71 the
checkpoint cannot be read, or the file cannot be written.
"""


def main(arguments: list[str] | None = None) -> int:
    """Export as the arguments say and return the exit code."""
    parser = Parser(
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

    def lines() -> Iterator[str]:
        chosen = parser.parse_args(arguments)
        yield export(chosen.checkpoint, chosen.out, averaged=chosen.ema)

    return run_tool("export", lines)


def export(checkpoint: str, out: Path, *, averaged: bool = False) -> str:
    """Write a checkpoint's weights to `out`, which appears only when it is complete; return a line.

    `averaged` writes the weights averaged with TRAINER_EMA_DECAY instead of the last step's.
    Raises Fault(64) if there are none, if safetensors has no such dtype or if `out` has a pickle's
    name, Fault(65) for a damaged checkpoint and Fault(71) if it cannot be read or the file cannot be
    written.
    """
    if out.is_dir():
        raise Fault(Exit.CONFIG, f"-o {out}: is a folder; name a file")
    if out.suffix in (".pt", ".pth", ".bin", ".ckpt"):  # which torch.load then could not read
        safe = out.with_suffix(".safetensors").name
        raise Fault(Exit.CONFIG, f"-o {out}: the file has the format safetensors; name it {safe}")
    # torch takes seconds to import; --help and wrong arguments do not need it.
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    from trainer.checkpoint.find import complete  # noqa: PLC0415
    from trainer.checkpoint.parts import whole  # noqa: PLC0415

    found = complete(checkpoint)
    keys = _with_prefix("model.", found.manifest.tensors)
    if averaged:
        average = _with_prefix("extra.ema.", found.manifest.tensors)
        if not average:
            raise Fault(
                Exit.CONFIG,
                f"{found.where}: its run had no TRAINER_EMA_DECAY, so there are no averaged weights",
            )
        keys |= average
    progress = found.manifest.progress
    metadata = {"format": "pt", "task": progress.task, "step": str(progress.step)}
    metadata["samples"] = str(progress.samples)
    partial = out.with_name(f".{out.name}.partial")
    try:
        tensors = {name: whole(found, key) for name, key in keys.items()}
    except (OSError, EOFError) as error:
        raise Fault(Exit.MACHINE, f"{found.where}: cannot be read: {error}") from error
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata)
        partial.replace(out)
    except KeyError as error:  # save_file's, for a dtype that the format does not have
        names = ", ".join(name for name, one in tensors.items() if one.dtype == error.args[0])
        text = f"{out}: a safetensors file cannot hold {names}, of {error.args[0]}"
        raise Fault(Exit.CONFIG, text) from None
    except (OSError, SafetensorError) as error:  # safetensors raises its own error on a full disk
        with contextlib.suppress(OSError):
            partial.unlink()
        reason = getattr(error, "strerror", None) or error
        raise Fault(Exit.MACHINE, f"{out}: cannot be written: {reason}") from error
    size = sum(tensor.nbytes for tensor in tensors.values())
    if others := _with_prefix("model.", found.manifest.values):
        print(f"export: {', '.join(others)} is left out: not a tensor", file=sys.stderr)
    return f"{out}: {len(tensors)} tensors, {size:,} bytes, of {found.where}"


def _with_prefix(prefix: str, keys: Iterable[str]) -> dict[str, str]:
    """Return the keys that start with `prefix`, by the rest of the key."""
    return {key.removeprefix(prefix): key for key in keys if key.startswith(prefix)}


if __name__ == "__main__":
    sys.exit(main())
