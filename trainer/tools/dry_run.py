"""A run of many ranks, built in one process to see what each would need; nothing is trained.

Mesh, model and strategy are the real ones, on torch's fake process group and fake tensors: shapes
without memory. One optimiser step is taken and its tensors and collectives are counted.

    TRAINER_DRY_RUN=1024 TRAINER_MODE=fsdp TRAINER_GLOBAL_BATCH=8192 python -m trainer
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer import strategies, tasks
from trainer.config.environment import variable
from trainer.config.exits import Exit
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Order, training_shares
from trainer.data.sets import Batch, tokens_of
from trainer.distributed.precision import dtype_of
from trainer.distributed.runtime import Runtime, place
from trainer.models.ema import Average
from trainer.models.footprint import Activations, Footprint
from trainer.models.recompute import recompute_blocks
from trainer.plan.choice import settle
from trainer.plan.sizing import Sizing
from trainer.report.metrics import reporting

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Need:
    """What one rank needs, in bytes.

    `average` is the moving average of the weights, `activations` what the forward pass keeps for the
    backward pass, `peak` the most that is held at once in a step, everything counted, and `sent` what
    leaves the rank per step, by collective: the mean step where not every one sends the same.
    """

    rank: int
    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    peak: int
    sent: dict[str, int]


def run(settings: Settings, world_size: int) -> Exit:
    """Report what each rank would need, once for every stage of a pipeline.

    Raises Fault as the real run would.
    """
    sizing = settle(settings, world_size, label=variable)
    needs = []
    for rank in range(0, world_size, world_size // sizing.mesh["pp"]):
        with _world(sizing, rank) as runtime:
            needs.append(_need(settings, runtime))
    with reporting(settings, replace(runtime, rank=0)) as report:
        for need in needs:
            report("dry_run", mode=sizing.mode, world_size=world_size, **asdict(need))
            log.info(_words(need, settings.device_memory))
    return Exit.DONE


def _need(settings: Settings, runtime: Runtime) -> Need:
    task = tasks.load(settings)
    batches = _micro_batches(settings, task, runtime)
    with (
        _joining_meshes(),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
        Footprint() as footprint,
    ):
        context = strategies.Context(settings, runtime, task.loss, lambda: batches[0].inputs)
        model = _model(task, dtype_of(settings))
        if settings.activation_checkpointing:
            recompute_blocks(model)
        # A process of hogwild's takes the same step as one that is alone.
        alone = runtime.sizing.mode == "hogwild"
        strategy = strategies.build("single" if alone else runtime.sizing.mode, model, context)
        del model
        if isinstance(strategy.module, DistributedDataParallel):
            strategy.module.register_comm_hook(runtime.mesh, _all_reduce)
        there = fake.from_tensor
        faked = [Batch(there(b.inputs), there(b.targets), there(b.weights)) for b in batches]
        _make_state(strategy)
        average = Average(strategy.module, settings.ema_decay) if settings.ema_decay else None

        def step() -> None:
            strategy.step(faked, float(runtime.sizing.batches.global_batch))
            strategy.clip(settings.clip_norm)
            strategy.optimizer.step()

        need = measure(step, strategy, footprint, rank=runtime.rank)
        if average:
            need = replace(need, average=_held(average.state_dict().values()))
        if runtime.sizing.mode == "localsgd":
            need = replace(need, sent=_averaging(strategy, footprint, settings.local_steps))
        return _in_each(need, settings.processes or torch.get_num_threads()) if alone else need


def measure(
    step: Callable[[], object], strategy: strategies.Strategy, footprint: Footprint, *, rank: int
) -> Need:
    """Take a step, which leaves the gradients in place, and return what it needed."""
    footprint.start_over()
    activations = Activations()
    with activations.of(strategy.module):
        step()
    return Need(
        rank=rank,
        parameters=_held((*strategy.module.parameters(), *strategy.module.buffers())),
        gradients=_held(p.grad for p in strategy.module.parameters()),
        optimizer=_held(_state(strategy.saved_optimizer or strategy.optimizer)),
        average=0,
        activations=activations.peak,
        peak=footprint.peak,
        sent=dict(footprint.sent),
    )


def _in_each(need: Need, processes: int) -> Need:
    """Return what so many processes need that share the weights and nothing else."""
    shared = need.parameters + need.average
    return replace(
        need,
        gradients=processes * need.gradients,
        optimizer=processes * need.optimizer,
        activations=processes * need.activations,
        peak=shared + processes * (need.peak - shared),
    )


def _averaging(strategy: strategies.Strategy, footprint: Footprint, steps: int) -> dict[str, int]:
    """Return what averaging the weights sends, as a mean over the steps between two of them."""
    footprint.start_over()
    strategy.synchronize()
    return {name: size // steps for name, size in footprint.sent.items()}


@contextlib.contextmanager
def _joining_meshes() -> Iterator[None]:
    """Let meshes be joined out of real numbers, as fully_shard does for what tp has split.

    It looks for its own rank in them, and a fake tensor has no elements to look at (torch 2.15).
    """
    join = DeviceMesh._concatenate  # noqa: SLF001

    def joined(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return join(meshes)

    before = vars(DeviceMesh)["_concatenate"]
    setattr(DeviceMesh, "_concatenate", joined)  # noqa: B010  # mypy forbids to assign a method
    try:
        yield
    finally:
        setattr(DeviceMesh, "_concatenate", before)  # noqa: B010


def _words(need: Need, device_memory: float | None) -> str:
    parts = (
        f"{name} {_size(getattr(need, name))}"
        for name in ("parameters", "gradients", "optimizer", "average", "activations")
    )
    sent = ", ".join(f"{name} {_size(size)}" for name, size in need.sent.items())
    text = (
        f"rank {need.rank} needs {_size(need.peak)} at the peak of a step ({', '.join(parts)}) "
        f"and sends {sent or 'nothing'}"
    )
    if device_memory is None:
        return text
    fits = need.peak <= device_memory * 2**30
    return f"{text}; it {'fits' if fits else 'does NOT fit'} in {device_memory:g} GiB"


def _size(count: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


@contextlib.contextmanager
def _world(sizing: Sizing, rank: int) -> Iterator[Runtime]:
    """Be rank `rank` of a world that is not there."""
    cpu = torch.device("cpu")
    if sizing.world_size == 1:
        yield Runtime(0, 0, cpu, "fake", sizing, None, None, 0)
        return
    # DTensor remembers results by equal meshes, and with them the names of groups that are gone.
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", rank=rank, world_size=sizing.world_size, store=FakeStore())
    try:
        mesh, share = place(sizing, cpu)
        yield Runtime(rank, 0, cpu, "fake", sizing, mesh, None, share)
    finally:
        dist.destroy_process_group()


def _model(task: tasks.Task, dtype: torch.dtype) -> nn.Module:
    """Return the model, of fake tensors, which cannot be converted once they are in a module."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return task.model()
    finally:
        torch.set_default_dtype(before)


def _micro_batches(settings: Settings, task: tasks.Task, runtime: Runtime) -> list[Batch]:
    """Return the rank's micro-batches of the first step: real ones, for their shapes."""
    data, batches = task.data(train=True), runtime.sizing.batches
    order = Order(settings.seed, len(data), batches.global_batch, tokens_of(data))
    shares = training_shares(order, batches, runtime.data_rank, start=0)
    loaded = Loader(data, device=runtime.device, dtype=dtype_of(settings))(shares)
    return list(islice(loaded, batches.accumulation))


def _all_reduce(mesh: DeviceMesh, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Reduce a bucket in Python: what DDP does in C++ has no result in a world that is not there."""
    dist.all_reduce(bucket.buffer(), group=mesh.get_group("dp_replicate"))
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _held(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of this rank's part of `tensors`."""
    local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors if t is not None)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _make_state(strategy: strategies.Strategy) -> None:
    """Let the optimiser make its state before the step that is counted, as in any later step."""
    for parameter in strategy.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    strategy.optimizer.step()
    strategy.optimizer.zero_grad()


def _state(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
