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
    """What is known of a mode.

    `axes` are those of the mesh it can use, `whole` the one that takes the world when no mesh is
    given. Without `whole` a mode runs in one process, or wants its mesh spelt out. A `staged` mode
    cuts the model and puts each part where it belongs; any other gets it on the rank's device.
    """

    axes: tuple[str, ...]
    whole: str | None
    summary: str
    staged: bool = False


MODES: dict[str, Mode] = {
    "single": Mode(axes=(), whole=None, summary="one process, one device"),
    "dp": Mode(
        axes=(),
        whole=None,
        summary="nn.DataParallel: one process, a replica per visible GPU, loss on the first",
    ),
    "dp-balanced": Mode(
        axes=(), whole=None, summary="nn.DataParallel with the loss inside the replica"
    ),
    "hogwild": Mode(
        axes=(),
        whole=None,
        summary="processes that update the same weights in shared memory, asynchronously (CPU)",
    ),
    "ddp": Mode(
        axes=("dp_replicate",),
        whole="dp_replicate",
        summary="a replica per rank, gradients averaged while they are computed",
    ),
    "ddp-zero1": Mode(
        axes=("dp_replicate",),
        whole="dp_replicate",
        summary="ddp with the optimiser's state split over the ranks (ZeroRedundancyOptimizer)",
    ),
    "localsgd": Mode(
        axes=("dp_replicate",),
        whole="dp_replicate",
        summary="each rank by itself, weights averaged every few steps (local SGD, DiLoCo)",
    ),
    "fsdp": Mode(
        axes=("dp_shard",),
        whole="dp_shard",
        summary="parameters, gradients and optimiser state sharded over all ranks (fully_shard)",
    ),
    "hsdp": Mode(
        axes=("dp_replicate", "dp_shard"),
        whole=None,
        summary="sharded within a group of ranks, replicated over the groups",
    ),
    "mp": Mode(
        axes=(),
        whole=None,
        staged=True,
        summary="one process: the layers in stages over its devices, balanced by measured cost",
    ),
    "pp": Mode(
        axes=("pp", "dp_replicate", "dp_shard", "tp"),
        whole="pp",
        staged=True,
        summary="a pipeline: the layers in stages over ranks, micro-batches flowing through; "
        "each stage replicated, sharded or split where the mesh says so",
    ),
    "tp": Mode(
        axes=("dp_replicate", "dp_shard", "tp"),
        whole="tp",
        summary="each layer's weights split over ranks (DTensor), the rest of the mesh sharded or "
        "replicated",
    ),
}
