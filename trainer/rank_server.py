"""Checks the settings for the launcher, then imports torch and forks the ranks of our own trainer.

Only the launcher starts it (trainer/launcher/fork_server.py):

    python -m trainer.rank_server SOCKET LAUNCHER_PID
"""

import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from trainer.config.contract import resolve
from trainer.config.ending import exit_process
from trainer.config.environment import from_environment, variable
from trainer.config.exits import STOP_SIGNALS, Fault
from trainer.imports import without_collection
from trainer.launcher.forking import name_process, send, serve
from trainer.launcher.hardware import count_devices, share_cores
from trainer.launcher.orphans import die_with_parent
from trainer.plan import auto
from trainer.plan.sizing import size

# What a rank imports before the first step. Each rank imports a user's own model itself.
_PRELOADED = ("trainer.engine.loop", "trainer.__main__")


def main() -> NoReturn:
    """Answer with the facts, then fork while the launcher lives."""
    # Blocked here, and unblocked in each rank, which sets its own handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    die_with_parent(int(sys.argv[2]))
    name_process("fork server")
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        mode, facts = _check()
    except Fault as fault:
        send(connection, fault=int(fault.code), message=str(fault))
        sys.exit(fault.code)
    send(connection, **facts)
    if sys.platform != "linux":  # each rank is a new process
        sys.exit(0)
    with without_collection():
        for module in (*_PRELOADED, f"trainer.strategies.{mode.replace('-', '_')}"):
            importlib.import_module(module)
        from trainer.distributed.torch_private import preload  # noqa: PLC0415  # needs torch

        preload()
    send(connection, imported=True)
    if serve(connection) == "store":
        _keep_store(connection)
    connection.close()
    from trainer.__main__ import train  # noqa: PLC0415  # needs torch

    exit_process(train(is_forked=True))


def _check() -> tuple[str, dict[str, object]]:
    """Check here, once, what every rank would refuse; return the mode, and what the launcher needs."""
    settings = from_environment()
    contract = resolve(os.environ, devices=count_devices)
    sizings = [
        size(
            settings,
            nodes * contract.ranks_per_node,
            label=variable,
            uneven=contract.min_nodes != contract.max_nodes,
        )
        for nodes in range(contract.min_nodes, contract.max_nodes + 1)
    ]
    mode, environment = sizings[-1].mode, {}
    if choice := auto.choose_on_node(settings, sizings):
        mode, environment = choice.mode, auto.as_variable(choice)
    reason = share_cores(contract.ranks_per_node)  # torch reads the variable when it is imported
    options = {
        "rendezvous_timeout": settings.rendezvous_timeout,
        "last_call": settings.last_call,
        "peer_timeout": settings.peer_timeout,
        "peer_losses": settings.peer_losses,
        "health": str(settings.health or ""),
        "health_limit": settings.health_limit,
        "run_folder": str(settings.run_folder),
    }
    threads = {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
    return mode, {
        "ranks": contract.ranks_per_node,
        "environment": environment | threads,
        "reason": reason,
        "options": options,
    }


def _keep_store(connection: socket.socket) -> NoReturn:
    """Keep the store of a round, which all its ranks connect to, until the launcher ends this process.

    It is not in a rank, because when a rank is lost, the others still read the cause from the store.
    """
    from torch.distributed import TCPStore  # noqa: PLC0415

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    send(connection, port=store.port)
    connection.close()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
