"""Hogwild: several processes update one set of weights in shared memory, asynchronously and unlocked.

Each process has an optimiser of its own, takes the next global batch that nobody has, computes on the
weights as they are at that moment, and writes its update into them while others do (Niu et al., 2011).
This process deals out the batches in the order of the data, so each is used once and a checkpoint is
at an exact place; it evaluates and saves, for which it waits until every batch it dealt is in the
weights. The momenta are averaged there. Loss and gradient norm reported are the newest there are, by
as many steps old as there are processes.

    TRAINER_MODE=hogwild TRAINER_PROCESSES=2 python -m trainer
"""

import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.distributed.runtime import as_fault, say
from trainer.strategies import Context, Strategy, accumulate, clip, inference


def build(model: nn.Module, context: Context) -> Strategy:
    settings, device = context.settings, context.runtime.device
    if device.type != "cpu":
        raise Fault(
            Exit.CONFIG,
            f"mode hogwild: shares its weights in the machine's memory, but this rank is on {device}; "
            "CUDA_VISIBLE_DEVICES= hides the GPUs",
        )
    optimizer = optim.build(model.parameters(), settings)
    crew = Crew(model, optimizer, context)

    return Strategy(
        module=model,
        optimizer=optimizer,  # takes no step itself: it holds the mean state, and the rate
        step=crew.deal,
        clip=lambda _: crew.norm(),
        forward=inference(model, context),
        settle=crew.settle,
        close=crew.close,
    )


@dataclass(frozen=True)
class _Work:
    """A global batch for one process, with all that its update depends on."""

    micro_batches: Sequence[Batch]
    weight: float
    rate: float
    seed: int


@dataclass(frozen=True)
class _Update:
    """What came of a batch: the sum of its losses, over its weight, and the gradient's norm."""

    loss: Tensor
    norm: Tensor


@dataclass(frozen=True)
class _Failure:
    """How a process ended, for the one that tells it."""

    code: Exit
    message: str
    trace: str


class _Remote(Exception):
    """Shows the traceback of another process as the cause of an error in this one."""


class Crew:
    """The processes, and what is known of each: it is idle, or at work on a batch."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: Context) -> None:
        self.newest = _Update(torch.zeros(()), torch.zeros(()))
        self._model, self._optimizer, self._context = model, optimizer, context
        self._processes: list[BaseProcess] = []
        self._ends: list[Connection] = []
        self._busy: set[Connection] = set()
        self._updates = 0
        self._state_is_theirs = True
        optimizer.register_load_state_dict_post_hook(self._loaded)

    def deal(self, micro_batches: Sequence[Batch], _: float) -> Tensor:
        """Give a batch to an idle process; return the newest loss, times the batch's weight."""
        # Without the samples that cannot be read: once the gradient is here, it is in the weights.
        weight = sum(float(batch.weights.double().sum()) for batch in micro_batches) or 1.0
        # There are no gradients here: all this does is wait while a checkpoint's copy is made.
        self._optimizer.step()
        if not self._processes:
            self._start()
        if not self._state_is_theirs:
            self._hand_out_state()
        while len(self._busy) == len(self._ends):
            self._receive()
        end = next(end for end in self._ends if end not in self._busy)
        rate = self._optimizer.param_groups[0]["lr"]
        self._send(end, _Work(micro_batches, weight, rate, torch.initial_seed()))
        self._busy.add(end)
        while not self._updates:  # there is no loss to return yet
            self._receive()
        return self.newest.loss * weight

    def norm(self) -> Tensor:
        """Return the newest norm; one that is not finite once, not until the next one comes."""
        norm = self.newest.norm
        if not norm.isfinite():
            self.newest = replace(self.newest, norm=torch.zeros(()))
        return norm

    def settle(self) -> None:
        """Wait until every batch is in the weights, and average the processes' momenta."""
        while self._busy:
            self._receive()
        if not self._updates or not self._state_is_theirs:
            return
        states = []
        for end in self._ends:
            self._send(end, "state")
            states.append(self._answer([end])[1])
        self._optimizer.load_state_dict(_mean(states))
        self._hand_out_state()

    def close(self) -> None:
        """End the processes; those at work do not finish it."""
        for process in self._processes:
            process.kill()
            process.join()
        for end in self._ends:
            end.close()
        self._processes, self._ends, self._busy = [], [], set()

    def _start(self) -> None:
        settings = self._context.settings
        count = settings.processes or torch.get_num_threads()
        why = "as set" if settings.processes else "one for each thread that this process may use"
        say(f"mode hogwild: {count} processes ({why}), one thread each")
        self._model.share_memory()
        spawn = mp.get_context("spawn")
        # A stop's signal reaches them too, but it is for this process to say when they end. What is
        # blocked here stays blocked in them.
        resource_tracker.ensure_running()  # first: its own start unblocks these signals
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            for _ in range(count):
                here, there = spawn.Pipe()
                process = spawn.Process(
                    target=_work, args=(self._model, self._context, there), daemon=True
                )
                process.start()
                there.close()  # else its end would not be noticed here
                self._processes.append(process)
                self._ends.append(here)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _loaded(self, _: Optimizer) -> None:
        self._state_is_theirs = False

    def _hand_out_state(self) -> None:
        while self._busy:
            self._receive()
        for end in self._ends:
            self._send(end, self._optimizer.state_dict())
        self._state_is_theirs = True

    def _send(self, end: Connection, message: Any) -> None:
        try:
            end.send_bytes(pickle.dumps(message))
        except OSError:
            self._answer([end])  # tells why it is gone
            raise

    def _receive(self) -> None:
        end, update = self._answer(list(self._busy))
        self._busy.remove(end)
        self._updates += 1
        self.newest = update

    def _answer(self, ends: list[Connection]) -> tuple[Connection, Any]:
        """Return the first answer from one of `ends`. Raises what went wrong in the process."""
        limit = self._context.settings.collective_timeout
        ready = wait(ends, timeout=limit)
        if not ready:
            raise Fault(Exit.CODE, f"mode hogwild: no process has answered for {limit} s")
        end = next(end for end in ends if end in ready)
        number = self._ends.index(end)
        try:
            answer = pickle.loads(end.recv_bytes())  # noqa: S301  # it comes from our own process
        except (EOFError, OSError):
            process = self._processes[number]
            process.join(timeout=10)
            raise Fault(
                Exit.CODE,
                f"mode hogwild: process {number} (pid {process.pid}) ended {_how(process.exitcode)}",
            ) from None
        if isinstance(answer, _Failure):
            message = f"hogwild process {number}: {answer.message}"
            if answer.code == Exit.CODE:
                raise RuntimeError(message) from _Remote(answer.trace)
            raise Fault(answer.code, message)
        return end, answer


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with {code}"


def _work(model: nn.Module, context: Context, end: Connection) -> None:
    """Take batches until the other end is closed."""
    torch.set_num_threads(1)
    try:
        _take_batches(model, context, end)
    except (EOFError, BrokenPipeError):
        pass  # the process that deals has ended
    except BaseException as error:  # noqa: BLE001  # whatever it was, it is told over there
        fault = as_fault(error)
        end.send_bytes(pickle.dumps(_Failure(fault.code, str(fault), traceback.format_exc())))


def _take_batches(model: nn.Module, context: Context, end: Connection) -> None:
    parameters = list(model.parameters())
    optimizer = optim.build(parameters, context.settings)
    while True:
        message = pickle.loads(end.recv_bytes())  # noqa: S301  # it comes from our own process
        if message == "state":
            end.send_bytes(pickle.dumps(optimizer.state_dict()))
        elif isinstance(message, _Work):
            update = _update(model, optimizer, message, context)
            end.send_bytes(pickle.dumps(update))
        else:
            optimizer.load_state_dict(message)


def _update(model: nn.Module, optimizer: Optimizer, work: _Work, context: Context) -> _Update:
    torch.manual_seed(work.seed)
    optim.set_learning_rate(optimizer, work.rate)
    model.train()
    kept = [buffer.clone() for buffer in model.buffers()]
    loss_sum = accumulate(model, work.micro_batches, context, scale=1 / work.weight)
    norm = clip(list(model.parameters()), context.settings.clip_norm)
    if norm.isfinite():
        optimizer.step()
    else:  # a BatchNorm has the batch in its statistics by now, and others go on with those
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)
    optimizer.zero_grad()
    return _Update(loss_sum / work.weight, norm.detach())


def _mean(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of optimisers' states; one that never had a gradient has none of a parameter."""
    held: dict[int, list[dict[str, Tensor]]] = {}
    for state in states:
        for parameter, values in state["state"].items():
            held.setdefault(parameter, []).append(values)
    mean = {
        parameter: {name: torch.stack([one[name] for one in values]).mean(0) for name in values[0]}
        for parameter, values in held.items()
    }
    return {"state": mean, "param_groups": states[0]["param_groups"]}
