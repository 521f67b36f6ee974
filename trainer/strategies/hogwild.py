"""Hogwild: several processes update one set of weights in shared memory, asynchronously, without locks.

Each worker process has its own optimiser. It gets the next global batch, computes with the current
weights, and updates them while other workers do the same (Niu et al., 2011). The main process sends the
batches in the order of the data. So each batch is used once, and a checkpoint has an exact position in
the data. Before it evaluates or saves, the main process waits until all batches are in the weights, and
averages the workers' momenta. The reported loss and gradient norm are the newest received; they are as
many steps old as there are workers.

    TRAINER_MODE=hogwild TRAINER_PROCESSES=2 python -m trainer
"""

import logging
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from statistics import fmean
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.distributed.generators import seed
from trainer.distributed.runtime import as_fault
from trainer.strategies import Context, Strategy, accumulate, clip, inference, refuse_gradient_hooks

log = logging.getLogger("trainer")


def build(model: nn.Module, context: Context) -> Strategy:
    settings, device = context.settings, context.runtime.device
    if device.type != "cpu":
        raise Fault(
            Exit.CONFIG,
            f"mode hogwild: shares its weights in host memory, but this rank is on {device}; "
            "set CUDA_VISIBLE_DEVICES= to hide the GPUs",
        )
    refuse_gradient_hooks(model, settings)
    optimizer = optim.build(model, settings, context.own)
    workers = Workers(model, optimizer, context)
    return Strategy(
        module=model,
        optimizer=optimizer,  # does not update: it holds the mean state and the learning rate
        step=workers.send_batch,
        clip=lambda _: workers.take_norm(),
        forward=inference(model, context),
        synchronize=workers.synchronize,
        close=workers.close,
    )


@dataclass(frozen=True)
class _Work:
    """A global batch for one worker, with everything else that its update depends on."""

    micro_batches: Sequence[Batch]
    weight: float
    rates: Sequence[float]  # of the parameter groups
    seed: int


@dataclass(frozen=True)
class _Failure:
    """The error that ended a worker, and its traceback."""

    fault: Fault
    trace: str


class Workers:
    """The worker processes, each idle or busy with one batch."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: Context) -> None:
        self._loss = self._norm = torch.zeros(())  # of the newest update
        self._model, self._optimizer, self._context = model, optimizer, context
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []  # to each worker
        self._busy: set[Connection] = set()
        self._updates = 0
        self._loaded = False  # a state that the workers do not have yet
        optimizer.register_load_state_dict_post_hook(self._note_load)

    def send_batch(self, micro_batches: Sequence[Batch], _: float) -> Tensor:
        """Send a batch to an idle worker; return the newest loss, times the batch's weight."""
        # Unreadable samples do not count: a worker updates before the loop could correct the weight.
        weight = sum(float(batch.weights.double().sum()) for batch in micro_batches) or 1.0
        # There are no gradients here. This call only waits while a checkpoint is copied.
        self._optimizer.step()
        if not self._processes:
            self._start()
        if self._loaded:
            self._send_state()
        while len(self._busy) == len(self._pipes):
            self._receive_update()
        pipe = next(pipe for pipe in self._pipes if pipe not in self._busy)
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._send(pipe, _Work(micro_batches, weight, rates, torch.initial_seed()))
        self._busy.add(pipe)
        while not self._updates:  # there is no loss to return yet
            self._receive_update()
        return self._loss * weight

    def take_norm(self) -> Tensor:
        """Return the newest norm. If it is not finite, return it only once, so it is counted once."""
        norm = self._norm
        if not norm.isfinite():
            self._norm = torch.zeros(())
        return norm

    def synchronize(self) -> None:
        """Wait until every batch is in the weights, and average the workers' momenta."""
        while self._busy:
            self._receive_update()
        if not self._updates or self._loaded:
            return
        states = []
        for pipe in self._pipes:
            self._send(pipe, "state")
            states.append(self._receive([pipe])[1])
        self._optimizer.load_state_dict(_mean(states))
        self._send_state()

    def close(self) -> None:
        """Kill the workers, also busy ones."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._busy = [], [], set()

    def _start(self) -> None:
        settings = self._context.settings
        count = settings.processes or torch.get_num_threads()
        reason = "as set" if settings.processes else "one for each thread that this process may use"
        log.info("mode hogwild: %s processes (%s), one thread each", count, reason)
        self._model.share_memory()
        spawn = mp.get_context("spawn")
        # A signal to stop also reaches the workers, but this process decides when they end. Signals that
        # are blocked here are also blocked in the workers.
        resource_tracker.ensure_running()  # first, because its start unblocks these signals
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            for _ in range(count):
                here, there = spawn.Pipe()
                process = spawn.Process(
                    target=_work, args=(self._model, self._context, there), daemon=True
                )
                process.start()
                there.close()  # otherwise this process would not notice when the worker ends
                self._processes.append(process)
                self._pipes.append(here)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _note_load(self, _: Optimizer) -> None:
        self._loaded = True

    def _send_state(self) -> None:
        """Send the optimiser's state to all workers, once they are idle."""
        while self._busy:
            self._receive_update()
        for pipe in self._pipes:
            self._send(pipe, self._optimizer.state_dict())
        self._loaded = False

    def _send(self, pipe: Connection, message: Any) -> None:
        try:
            pipe.send_bytes(pickle.dumps(message))
        except OSError:
            self._receive([pipe])  # raises the error that ended the worker
            raise

    def _receive_update(self) -> None:
        pipe, (self._loss, self._norm) = self._receive(list(self._busy))
        self._busy.remove(pipe)
        self._updates += 1

    def _receive(self, pipes: list[Connection]) -> tuple[Connection, Any]:
        """Return the first message from one of `pipes`. Raises the error that ended its worker."""
        limit = self._context.settings.collective_timeout
        ready = wait(pipes, timeout=limit)
        if not ready:
            raise Fault(Exit.CODE, f"mode hogwild: no process has answered for {limit} s")
        pipe = next(pipe for pipe in pipes if pipe in ready)
        number = self._pipes.index(pipe)
        try:
            answer = pickle.loads(pipe.recv_bytes())  # noqa: S301  # it comes from our own process
        except (EOFError, OSError):
            process = self._processes[number]
            process.join(timeout=10)
            code = process.exitcode
            ended = f"by {signal.Signals(-code).name}" if code and code < 0 else f"with {code}"
            raise Fault(
                Exit.CODE, f"mode hogwild: process {number} (pid {process.pid}) ended {ended}"
            ) from None
        if isinstance(answer, _Failure):
            message = f"hogwild process {number}: {answer.fault}"
            if answer.fault.code != Exit.CODE:
                raise Fault(answer.fault.code, message)
            error = RuntimeError(message)
            error.add_note(answer.trace)
            raise error
        return pipe, answer


def _work(model: nn.Module, context: Context, pipe: Connection) -> None:
    """Answer messages until the other end of the pipe is closed.

    To a batch the answer is the result of its update, to "state" the optimiser's state. Any other
    message is a state to load.
    """
    torch.set_num_threads(1)
    try:
        optimizer = optim.build(model, context.settings, context.own)
        while True:
            message = pickle.loads(pipe.recv_bytes())  # noqa: S301  # it comes from our own process
            if message == "state":
                pipe.send_bytes(pickle.dumps(optimizer.state_dict()))
            elif isinstance(message, _Work):
                pipe.send_bytes(pickle.dumps(_update(model, optimizer, message, context)))
            else:
                optimizer.load_state_dict(message)
    except (EOFError, BrokenPipeError):
        pass  # the main process has ended
    except BaseException as error:  # noqa: BLE001  # the main process raises it
        pipe.send_bytes(pickle.dumps(_Failure(as_fault(error), traceback.format_exc())))


def _update(
    model: nn.Module, optimizer: Optimizer, work: _Work, context: Context
) -> tuple[Tensor, Tensor]:
    """Update the weights with a batch; return its mean loss and the norm of its gradient."""
    seed(work.seed)
    for group, rate in zip(optimizer.param_groups, work.rates, strict=True):
        group["lr"] = rate
    model.train()
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    loss_sum = accumulate(model, work.micro_batches, context, scale=1 / work.weight)
    if any(now is not buffer for now, (buffer, _) in zip(model.buffers(), kept, strict=True)):
        raise Fault(
            Exit.CONFIG,
            f"task {context.settings.task}: the forward pass puts another tensor in a buffer's place, "
            "which other processes do not see; change the buffer in place, or use mode ddp",
        )
    norm = clip(list(model.parameters()), context.settings.clip_norm)
    if norm.isfinite():
        optimizer.step()
    else:  # remove the batch from the running statistics of BatchNorm, which all workers share
        for buffer, before in kept:
            buffer.copy_(before)
    optimizer.zero_grad()
    return loss_sum / work.weight, norm.detach()


def _mean(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of optimiser states. A parameter that had no gradient yet has no state."""
    by_parameter: dict[int, list[dict[str, Any]]] = {}
    for state in states:
        for parameter, values in state["state"].items():
            by_parameter.setdefault(parameter, []).append(values)
    mean = {parameter: _mean_of(values) for parameter, values in by_parameter.items()}
    return {"state": mean, "param_groups": states[0]["param_groups"]}


def _mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of tensors or numbers, and of each in dicts, in the type of the first one."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean_of([one[name] for one in values]) for name in first}
    if isinstance(first, Tensor):
        kind = torch.promote_types(first.dtype, torch.float32)
        return torch.stack([*values]).to(kind).mean(0).to(first.dtype)
    return type(first)(fmean(values))
