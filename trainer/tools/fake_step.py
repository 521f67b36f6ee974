"""One step of any rank of any world, on fake tensors and torch's fake process group, counted.

needs = needs_of_ranks(settings, sizing)
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer import strategies, tasks
from trainer.config.exits import Exit, Fault
from trainer.config.modes import MODES
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Order, training_shares
from trainer.data.sets import Batch, tokens_of
from trainer.data.stream import Stream
from trainer.data.task_contract import blamed_on, blocks_of, own_of
from trainer.distributed.by_name import freeze
from trainer.distributed.optim import update_as_on_a_gpu
from trainer.distributed.precision import dtype_of
from trainer.distributed.runtime import Runtime, place
from trainer.distributed.tensors import copied, local_part, map_tensors
from trainer.distributed.torch_private import (
    LOOKS_INTO_DATA,
    FakeTensorMode,
    forget_shardings,
    joining_meshes,
)
from trainer.models.blocks import choose
from trainer.models.ema import Average
from trainer.models.footprint import Activations, Footprint
from trainer.models.recompute import recompute_blocks
from trainer.plan.memory import Need
from trainer.plan.sizing import Sizing

_MOST_REAL = 2**30  # bytes of weights that are really made, where shapes are not enough


def needs_of_ranks(settings: Settings, sizing: Sizing) -> list[Need]:
    """Return what a rank needs, of each stage of a pipeline one.

    A model or loss that asks for values, as lengths for packing, takes its step on real tensors.
    Raises Fault(64) when it is too large for that.
    """
    try:
        return _needs(settings, sizing, real=False)
    except LOOKS_INTO_DATA as error:
        with FakeTensorMode():
            model = _model(tasks.load(settings), dtype_of(settings))
        if (weights := _bytes_on_rank(model.parameters())) > _MOST_REAL:
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: not for a dry run, which has shapes and no data: its model or "
                f"loss asks for values ({error.func}), and its {weights / 2**30:.1f} GiB of weights "
                "are too much to try it for real; train some steps to see what it needs",
            ) from error
        return _needs(settings, sizing, real=True)


def _needs(settings: Settings, sizing: Sizing, *, real: bool) -> list[Need]:
    needs = []
    for rank in range(0, sizing.world_size, sizing.world_size // sizing.mesh["pp"]):
        with _fake_world(sizing, rank) as runtime:
            needs.append(_need(settings, runtime, real=real))
    return needs


def _need(settings: Settings, runtime: Runtime, *, real: bool) -> Need:
    name, mode = runtime.sizing.mode, MODES[runtime.sizing.mode]
    task = tasks.load(settings)
    batches = _micro_batches(settings, task, runtime)
    with (
        joining_meshes(),
        contextlib.nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True) as fake,
        Footprint() as footprint,
    ):
        own = own_of(task, settings.task)
        context = strategies.Context(settings, runtime, task.loss, lambda: batches[0], own)
        with _blamed_on(settings.task, "model()"):
            model = _model(task, dtype_of(settings))
        if settings.freeze:
            freeze(model, settings.freeze)
        choose(blocks_of(task, model, settings.task))
        if settings.activation_checkpointing:
            recompute_blocks(model)
        strategy = strategies.build("single" if mode.processes else name, model, context)
        del model
        if settings.device_memory or torch.accelerator.is_available():
            update_as_on_a_gpu(strategy.optimizer)
        if fake:
            batches = [replace(b, **map_tensors(fake.from_tensor, vars(b))) for b in batches]
        # The optimiser makes its state before the step that is counted, as in any later step.
        for parameter in strategy.module.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        with _blamed_on(settings.task, "the first step"):
            strategy.optimizer.step()
        strategy.optimizer.zero_grad()
        average = Average(strategy.module, settings.ema_decay) if settings.ema_decay else None

        def step() -> None:
            strategy.step(batches, float(runtime.sizing.batches.global_batch))
            strategy.clip(settings.clip_norm)
            strategy.optimizer.step()

        with _blamed_on(settings.task, "the first step"):
            need = measure(step, strategy, footprint, rank=runtime.rank)
        if average:
            need = replace(need, average=_bytes_on_rank(average.state_dict().values()))
        if mode.sends_every and runtime.mesh:
            steps = getattr(settings, mode.sends_every)
            footprint.reset()
            strategy.synchronize()
            sent = {name: size // steps for name, size in footprint.sent.items()}
            need = replace(need, sent=sent)
        if mode.processes:  # they share the weights, and nothing else
            processes = settings.processes or torch.get_num_threads()
            shared = need.parameters + need.average
            need = replace(
                need,
                gradients=processes * need.gradients,
                optimizer=processes * need.optimizer,
                activations=processes * need.activations,
                peak=shared + processes * (need.peak - shared),
            )
        return need


def measure(
    step: Callable[[], object], strategy: strategies.Strategy, footprint: Footprint, *, rank: int
) -> Need:
    """Take a step, which leaves the gradients in place, and return what it needed."""
    footprint.reset()
    activations = Activations()
    with activations.counted(strategy.module):
        step()
    states = (strategy.saved_optimizer or strategy.optimizer).state.values()
    return Need(
        rank=rank,
        parameters=_bytes_on_rank((*strategy.module.parameters(), *strategy.module.buffers())),
        gradients=_bytes_on_rank(p.grad for p in strategy.module.parameters()),
        optimizer=_bytes_on_rank(
            value for state in states for value in state.values() if isinstance(value, Tensor)
        ),
        average=0,
        activations=activations.peak,
        peak=footprint.peak,
        sent=dict(footprint.sent),
    )


@contextlib.contextmanager
def _fake_world(sizing: Sizing, rank: int) -> Iterator[Runtime]:
    """Yield the place of rank `rank` in a process group without other processes."""
    cpu = torch.device("cpu")
    if sizing.world_size == 1:
        yield Runtime(0, 0, cpu, "fake", sizing, None, None, 0)
        return
    # DTensor remembers results by equal meshes, and with them the names of groups that are gone.
    forget_shardings()
    dist.init_process_group("fake", rank=rank, world_size=sizing.world_size)
    try:
        mesh, share = place(sizing, cpu)
        yield Runtime(rank, 0, cpu, "fake", sizing, mesh, None, share)
    finally:
        dist.destroy_process_group()


def _model(task: tasks.Task, dtype: torch.dtype) -> nn.Module:
    """Return the model with parameters and buffers of this dtype, of fake tensors within their mode."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = task.model()
    # A constructor that computes with tensors, as a RegNet's does, or gives lazy layers their size.
    except (*LOOKS_INTO_DATA, RuntimeError):
        # Fake tensors are made in this thread alone.
        with ThreadPoolExecutor(1) as other_thread:
            model = copied(other_thread.submit(task.model).result(), torch.empty_like)
    finally:
        torch.set_default_dtype(before)
    tensors = [one for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()]
    if all(one.dtype == dtype for one in tensors):
        return model
    # A module's fake tensors cannot be converted in place, as `cast` does.
    return copied(model, lambda t: t.detach().to(dtype if t.is_floating_point() else t.dtype))


@contextlib.contextmanager
def _blamed_on(name: str, method: str) -> Iterator[None]:
    """Do as `blamed_on`, but pass on that the code reads values, which fake tensors do not have."""
    try:
        with blamed_on(name, method):
            yield
    except Fault as fault:
        if isinstance(fault.__cause__, LOOKS_INTO_DATA):
            raise fault.__cause__ from None
        raise


def _micro_batches(settings: Settings, task: tasks.Task, runtime: Runtime) -> list[Batch]:
    """Return the rank's micro-batches of the first step: real ones, for their shapes.

    A task whose data may have to be downloaded offers `example(count)`: inputs and targets.
    """
    batches = runtime.sizing.batches
    if example := getattr(task, "example", None):
        inputs, targets = example(batches.micro)
        inputs = inputs.to(dtype_of(settings)) if inputs.is_floating_point() else inputs
        batch = Batch(inputs, targets, torch.ones(batches.micro), whole=True)
        return [batch] * batches.accumulation
    data = tasks.data(task, settings, train=True)
    is_stream = isinstance(data, Stream)
    order = Order(
        settings.seed, len(data), batches.global_batch, tokens_of(data), in_order=is_stream
    )
    shares = training_shares(order, batches, runtime.data_rank, start=0)
    loaded = Loader(data, device=runtime.device, dtype=dtype_of(settings))(shares)
    return list(islice(loaded, batches.accumulation))


def _bytes_on_rank(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of this rank's part of `tensors`."""
    return sum(local_part(tensor).nbytes for tensor in tensors if tensor is not None)
