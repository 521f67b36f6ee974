"""A run of many ranks, built in one process to see what each would need; nothing is trained.

Mesh, model and strategy are the real ones, on torch's fake process group and fake tensors: shapes
without memory. One optimiser step is taken and its tensors and collectives are counted.

    TRAINER_DRY_RUN=1024 TRAINER_MODE=fsdp TRAINER_GLOBAL_BATCH=8192 python -m trainer
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer import strategies, tasks
from trainer.data.loader import Loader
from trainer.data.order import Order, training_shares
from trainer.data.sets import Batch, tokens_of
from trainer.environment import variable
from trainer.exits import Exit
from trainer.footprint import Activations, Footprint
from trainer.metrics import reporting
from trainer.plan.choice import settle
from trainer.plan.sizing import Sizing
from trainer.precision import dtype_of
from trainer.runtime import Runtime, place, say
from trainer.settings import Settings


@dataclass(frozen=True)
class Need:
    """What one rank needs, in bytes.

    `activations` is what the forward pass keeps for the backward pass, `peak` the most that is held
    at once in a step, everything counted, and `sent` what leaves the rank per step, by collective.
    """

    rank: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    sent: dict[str, int]


def run(settings: Settings, world_size: int) -> Exit:
    """Report what each rank would need, once for every stage of a pipeline.

    Raises Fault as the real run would.
    """
    sizing = settle(settings, world_size, label=variable)
    stage = world_size // sizing.mesh["pp"]
    for rank in range(0, world_size, stage):
        with _world(sizing, rank) as runtime:
            need = _need(settings, runtime)
        with reporting(settings, runtime) as report:
            report("dry_run", mode=sizing.mode, world_size=world_size, **asdict(need))
        say(_words(need, settings.device_memory))
    return Exit.DONE


def _need(settings: Settings, runtime: Runtime) -> Need:
    task = tasks.load(settings)
    batches = _micro_batches(settings, task, runtime)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Footprint() as footprint:
        context = strategies.Context(settings, runtime, task.loss, lambda: batches[0].inputs)
        model = _model(task, dtype_of(settings))
        strategy = strategies.build(runtime.sizing.mode, model, context)
        del model
        if isinstance(strategy.module, DistributedDataParallel):
            strategy.module.register_comm_hook(runtime.mesh, _all_reduce)
        there = fake.from_tensor
        faked = [Batch(there(b.inputs), there(b.targets), there(b.weights)) for b in batches]
        _make_state(strategy)

        def step() -> None:
            strategy.step(faked, float(runtime.sizing.batches.global_batch))
            strategy.clip(settings.clip_norm)
            strategy.optimizer.step()

        return measure(step, strategy, footprint, rank=runtime.rank)


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
        activations=activations.peak,
        peak=footprint.peak,
        sent=dict(footprint.sent),
    )


def _words(need: Need, device_memory: float | None) -> str:
    parts = (
        f"{name} {_size(getattr(need, name))}"
        for name in ("parameters", "gradients", "optimizer", "activations")
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
