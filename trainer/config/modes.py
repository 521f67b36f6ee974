"""The modes by name, with every fact about them that needs no torch; the renderer uses them too.

A mode is one file in `trainer/strategies/` (underscores for hyphens) and one row here. No other file
decides anything by a mode's name.
"""

from dataclasses import dataclass

# The axes of the mesh, outermost first: ranks that differ only in the last axis are neighbours.
AXES = ("pp", "dp_replicate", "dp_shard", "tp")

# Ranks along these axes see different data.
DATA_AXES = ("dp_replicate", "dp_shard")


@dataclass(frozen=True)
class Refusal:
    """A setting that a mode cannot work with: at `value`, or at any value that switches it on."""

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
    or needs its mesh written out.
    `staged`: it cuts the model into stages and puts each on its device; other modes get a model that is
    on the rank's device.
    `sharded`: its ranks hold shards of the parameters; TRAINER_RESHARD and TRAINER_CPU_OFFLOAD apply.
    `refuses`: settings that it cannot work with. They do not matter where the mesh has one rank.
    `auto_by_mesh`: `auto` may choose it for a mesh whose axes it can use; fewer axes come first.
    `auto_by_memory`: `auto` may choose it where the memory of a device is known; rows above come first.
    `processes`: it starts TRAINER_PROCESSES processes that share the weights, and each takes the step
    of `single`; the dry run takes one such step and multiplies.
    `sends_every`: the setting with the number of steps after which it sends (None: it sends in each
    step); the dry run spreads what `Strategy.settle` sends over them.
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


_COMPILED_ONCE = "its replicas would all run what was compiled for the first; ddp would do"
_AS_BUILT = "it sends the model to its processes as the task built it; single would do"
_IN_PIECES = "its step is more than one process computes by itself; true compiles its blocks"
_OWN_WEIGHTS = "its ranks have different weights between two averagings; ddp would do"

MODES: dict[str, Mode] = {
    "single": Mode("one process, one device"),
    "dp": Mode(
        "nn.DataParallel: one process, a replica per visible GPU, loss on the first",
        refuses=(Refusal("compile", _COMPILED_ONCE),),
    ),
    "dp-balanced": Mode(
        "nn.DataParallel with the loss inside the replica",
        refuses=(Refusal("compile", _COMPILED_ONCE),),
    ),
    "hogwild": Mode(
        "processes that update the same weights in shared memory, asynchronously (CPU)",
        processes=True,
        refuses=(
            Refusal("activation_checkpointing", _AS_BUILT),
            Refusal("compile", _AS_BUILT),
            Refusal(
                "precision", "it has no common step to scale the loss for; bf16 would do", "fp16"
            ),
        ),
    ),
    "ddp": Mode(
        "a replica per rank, gradients averaged while they are computed",
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
        "each rank by itself, weights averaged every few steps (local SGD, DiLoCo)",
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
        "one process: the layers in stages over its devices, balanced by measured cost",
        staged=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "pp": Mode(
        "a pipeline: the layers in stages over ranks, micro-batches flowing through; "
        "each stage replicated, sharded or split where the mesh says so",
        axes=("pp", "dp_replicate", "dp_shard", "tp"),
        whole="pp",
        staged=True,
        auto_by_mesh=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
    "tp": Mode(
        "each layer's weights split over ranks (DTensor), the rest of the mesh sharded or "
        "replicated",
        axes=("dp_replicate", "dp_shard", "tp"),
        whole="tp",
        auto_by_mesh=True,
        refuses=(Refusal("compile", _IN_PIECES, "step"),),
    ),
}
