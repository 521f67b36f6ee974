"""How torch's agent starts the ranks, from our fork server, and where their output goes.

agent.py lists the private names of torch that this takes.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from trainer.launcher.fork_server import ForkedProcess, ForkServer
from trainer.launcher.rank_output import RankOutput


def fork_ranks_from(server: ForkServer) -> None:
    """Make torch's agent take the ranks' processes from `server`; it has no parameter for that."""
    if not hasattr(api, "get_subprocess_handler"):
        raise AttributeError("this torch starts processes without get_subprocess_handler")
    api.get_subprocess_handler = partial(_ForkingHandler, server)


class RankLogs(DefaultLogsSpecs):
    """Connects ranks to our pipes; the rank of a job of one rank gets the launcher's own output."""

    def __init__(self, folder: str, output: RankOutput) -> None:
        super().__init__(log_dir=folder)
        self._output = output

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destinations = super().reify(envs)
        if envs[0]["WORLD_SIZE"] == "1":
            return destinations
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        stdouts, stderrs = self._output.paths(ranks)
        return replace(destinations, stdouts=stdouts, stderrs=stderrs)


class _ForkingHandler(SubprocessHandler):
    """torch's handle of a rank, with a process from the fork server."""

    def __init__(self, server: ForkServer, **arguments: Any) -> None:
        self._server = server
        super().__init__(**arguments)

    def _popen(self, _: tuple[str, ...], env: dict[str, str]) -> ForkedProcess:  # type: ignore[override]
        stdout = self._stdout.fileno() if self._stdout else 1
        stderr = self._stderr.fileno() if self._stderr else 2
        return self._server.fork(env, stdout=stdout, stderr=stderr)
