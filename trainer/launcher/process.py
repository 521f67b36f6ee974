"""torch's handle of a rank, with a process from the fork server: torch's agent would start one anew.

take_from(server)
"""

from functools import partial
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from trainer.launcher.fork_server import Forked, ForkServer


class _Handler(SubprocessHandler):
    def __init__(self, server: ForkServer, **named: Any) -> None:
        self._server = server
        super().__init__(**named)

    def _popen(self, _: tuple[str, ...], env: dict[str, str]) -> Forked:  # type: ignore[override]
        out, err = (
            file.fileno() if file else own for file, own in ((self._stdout, 1), (self._stderr, 2))
        )
        return self._server.fork(env, stdout=out, stderr=err)


def take_from(server: ForkServer) -> None:
    """Have torch's agent take its ranks from `server`; it offers no place to say so."""
    if not hasattr(api, "get_subprocess_handler"):
        raise AttributeError("torch starts its ranks by other means than get_subprocess_handler")
    api.get_subprocess_handler = partial(_Handler, server)
