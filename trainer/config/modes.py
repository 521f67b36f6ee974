"""The modes by name, with all facts about them that need no torch. The renderer uses them too.

A mode is one file in `trainer/strategies/` (underscores for hyphens) and one row here. No other file
depends on a mode's name.
"""

from dataclasses import dataclass

# The axes of the mesh, outermost first: ranks that differ only in the last axis are neighbours.
AXES = ("pp", "dp_replicate", "dp_shard", "tp")

# Ranks along these axes see different data.
DATA_AXES = ("dp_replicate", "dp_shard")


@dataclass(frozen=True)
class Refusal:
    """A setting that a mode refuses: at `value`, or, if that is None, at any value that is true."""

    setting: str
    reason: str
    value: object = None

    def applies(self, value: object) -> bool:
        return bool(value) if self.value is None else value == self.value


@dataclass(frozen=True)
class Mode:
    """The facts about a mode.

    `axes`: the axes of the mesh that it can use.
    `whole`: the axis that takes all ranks when no mesh is set. A mode without it runs in one process,
    or requires a mesh.
    `staged`: it cuts the model into stages and puts each on its device; other modes get a model that is
    on the rank's device.
    `sharded`: its ranks hold shards of the parameters; TRAINER_RESHARD and TRAINER_CPU_OFFLOAD apply.
    `refuses`: settings that it cannot work with. They do not matter where the mesh has one rank.
    `auto_by_mesh`: `auto` may choose it for a mesh whose axes it can use; it prefers fewer axes.
    `auto_by_memory`: `auto` may choose it when the memory of a device is known; it tries earlier rows
    first.
    `processes`: it starts TRAINER_PROCESSES processes that share the weights, and each takes the step
    of `single`; the dry run takes one such step and multiplies.
    `sends_every`: the setting with the number of steps between two sends (None: it sends in each
    step); the dry run divides what `Strategy.synchronize` sends by that number.
    """

    summary: str
    axes: tuple[str, ...] = ()
    whole: str | None = None
    staged: bool = False
    sharded: bool = False
    refuses: tuple[Refusal, ...] = ()
    auto_by_mesh: bool = False
    auto_by_memory: bool = False
    processes: bool = False
    sends_every: str | None = None


_COMPILED_ONCE = "its replicas would all run the code compiled for the first one; use ddp"
_AS_BUILT = "it sends the model to its processes as the task built it; use single"
_IN_PIECES = "its step cannot be compiled as a whole; use true, which compiles each block"
_OWN_WEIGHTS = "its ranks have different weights until they are averaged; use ddp"

MODES: dict[str, Mode] = {
    "single": Mode("one process, one device"),
    "dp": Mode(
        "nn.DataParallel: one process, a replica per visible GPU, loss on the first GPU",
        refuses=(Refusal("compile", _COMPILED_ONCE),),
    ),
    "dp-balanced": Mode(
        "nn.DataParallel that computes the loss in each replica",
        refuses=(Refusal("compile", _COMPILED_ONCE),),
    ),
    "hogwild": Mode(
        "processes update the same weights in shared memory, asynchronously (CPU)",
        processes=True,
        refuses=(
            Refusal("activation_checkpointing", _AS_BUILT),
            Refusal("compile", _AS_BUILT),
            Refusal(
                "precision", "it has no common step, so no common loss scale; use bf16", "fp16"
            ),
        ),
    ),
    "ddp": Mode(
        "a replica per rank; gradients are averaged during the backward pass",
        axes=("dp_replicate",),
        whole="dp_replicate",
        auto_by_mesh=True,
        auto_by_memory=True,
    ),
    "ddp-zero1": Mode(
        "ddp with the optimiser's state split over the ranks (ZeroRedundancyOptimizer)",
        axes=("dp_replicate",),
        whole="dp_replicate",
        auto_by_memory=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "localsgd": Mode(
        "each rank trains by itself; weights are averaged every few steps (local SGD, DiLoCo)",
        axes=("dp_replicate",),
        whole="dp_replicate",
        sends_every="local_steps",
        refuses=(
            Refusal("compile", _IN_PIECES, "step"),
            Refusal("ema_decay", _OWN_WEIGHTS),
            Refusal("fingerprint_steps", _OWN_WEIGHTS),
            Refusal("sync_batchnorm", _OWN_WEIGHTS),
        ),
    ),
    "fsdp": Mode(
        "parameters, gradients and optimiser state sharded over all ranks (fully_shard)",
        axes=("dp_shard",),
        whole="dp_shard",
        sharded=True,
        auto_by_mesh=True,
        auto_by_memory=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "hsdp": Mode(
        "sharded within a group of ranks, replicated over the groups",
        axes=("dp_replicate", "dp_shard"),
        sharded=True,
        auto_by_mesh=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "mp": Mode(
        "one process: stages of the model on several devices, balanced by measured cost",
        staged=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "pp": Mode(
        "a pipeline: stages of the model on different ranks; micro-batches flow through them; "
        "other axes of the mesh replicate, shard or split each stage",
        axes=("pp", "dp_replicate", "dp_shard", "tp"),
        whole="pp",
        staged=True,
        auto_by_mesh=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "tp": Mode(
        "each layer's weights split over ranks (DTensor); other axes of the mesh shard or "
        "replicate them",
        axes=("dp_replicate", "dp_shard", "tp"),
        whole="tp",
        auto_by_mesh=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
}
