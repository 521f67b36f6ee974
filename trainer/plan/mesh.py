"""The sizes of the mesh's axes, for a mode and a number of ranks."""

from collections.abc import Mapping
from math import prod

from trainer.config.environment import Label
from trainer.config.exits import Exit, Fault
from trainer.config.modes import AXES, DATA_AXES, MODES


def mesh_sizes(text: str, mode: str, world_size: int, *, label: Label) -> dict[str, int]:
    """Return the size of every axis of the mesh.

    Without `text` the mode's axis `whole` takes all ranks. Raises Fault(64) when the text cannot be
    parsed, names an axis that the mode does not use, or its product is not the world size.
    """
    usable, whole = MODES[mode].axes, MODES[mode].whole
    sizes = parse_mesh(text, label) if text else _default_mesh(mode, world_size, label)
    for axis, extent in sizes.items():
        if extent > 1 and axis not in usable:
            raise Fault(
                Exit.CONFIG,
                f"{label('mesh')}={text!r}: mode {mode} does not use the axis {axis}; "
                f"it uses {', '.join(usable) or 'none'}",
            )
    if prod(sizes.values()) != world_size:
        remedy = f"; use {whole}={world_size}" if whole else ""
        raise Fault(
            Exit.CONFIG,
            f"{label('mesh')}={text!r}: multiplies to {prod(sizes.values())}, but the world size is "
            f"{world_size}{remedy}",
        )
    return {axis: sizes.get(axis, 1) for axis in AXES}


def _default_mesh(mode: str, world_size: int, label: Label) -> dict[str, int]:
    usable, whole = MODES[mode].axes, MODES[mode].whole
    if whole:
        return {whole: world_size}
    if usable:
        outer = next(n for n in range(2, world_size + 2) if world_size % n == 0 or n > world_size)
        example = f"{usable[0]}={outer},{usable[1]}={max(1, world_size // outer)}"
        raise Fault(
            Exit.CONFIG, f"{label('mesh')} is not set: mode {mode} needs a mesh, e.g. {example}"
        )
    if world_size > 1:
        raise Fault(
            Exit.CONFIG,
            f"{label('mode')}={mode!r}: runs in one process, but there are {world_size} ranks; "
            "use ddp, or one rank",
        )
    return {}


def parse_mesh(text: str, label: Label) -> dict[str, int]:
    """Return the sizes that are written in `text`, by axis. Raises Fault(64)."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, number = (piece.strip() for piece in part.partition("="))
        if axis not in AXES or axis in sizes or not (number.isdecimal() and int(number) > 0):
            raise Fault(
                Exit.CONFIG,
                f"{label('mesh')}={text!r}: {part.strip()!r} is not AXIS=SIZE; write each of "
                f"{', '.join(AXES)} at most once, e.g. dp_replicate=2",
            )
        sizes[axis] = int(number)
    return sizes


def data_rank(coordinates: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    """Return which share of the data the rank at `coordinates` of the mesh reads."""
    rank = 0
    for axis in DATA_AXES:
        rank = rank * mesh[axis] + coordinates[axis]
    return rank
