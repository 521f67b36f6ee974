"""The modes by name, with what can be known of each without torch: the renderer plans with it.

A mode is one file in `trainer/strategies/` (underscores for hyphens) and one row here.
"""

from dataclasses import dataclass

# The axes of the mesh, outermost first: ranks that differ only in the last axis are neighbours.
AXES = ("pp", "dp_replicate", "dp_shard", "tp")

# Ranks along these axes see different data.
DATA_AXES = ("dp_replicate", "dp_shard")


@dataclass(frozen=True)
class Mode:
    """`axes`: the axes of the mesh the mode can use; the first takes the world when none is given."""

    axes: tuple[str, ...]
    summary: str


MODES: dict[str, Mode] = {
    "single": Mode(axes=(), summary="one process, one device"),
    "ddp": Mode(
        axes=("dp_replicate",),
        summary="a replica per rank, gradients averaged while they are computed",
    ),
}
