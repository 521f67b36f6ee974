"""A connection to a node by its name, which may lead to more than that node.

A pod's name leads for a while to the pod that it replaced as well, or instead, whose address answers
nothing, not even no.

    with connect("job-0.job", 29500) as connection: ...
"""

import contextlib
import os
import select
import socket
import time

_SECONDS = 2  # TCP asks again after one
_AGAIN_SECONDS = 0.2  # who says no may be about to listen


def connect(host: str, port: int) -> socket.socket:
    """Return a connection to whichever address of a name answers first.

    Who says no is asked again while another has said nothing yet. Raises OSError when each says no, or
    after 2 s: whoever tries again asks for the addresses anew.
    """
    problem: OSError = TimeoutError("timed out")
    end = time.monotonic() + _SECONDS
    to_ask = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    asked = {}
    with contextlib.ExitStack() as sockets:
        while True:
            for place in to_ask:
                family, kind, protocol, _, address = place
                try:
                    one = sockets.enter_context(socket.socket(family, kind, protocol))
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        one.connect(address)
                except OSError as error:  # no way there
                    problem = error
                else:
                    asked[one] = place
            to_ask = []
            for one in select.select([], asked, [], _AGAIN_SECONDS)[1] if asked else ():
                to_ask.append(asked.pop(one))
                code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    found = one.dup()  # the others end with this block
                    found.setblocking(True)
                    return found
                problem = OSError(code, os.strerror(code))
            if not asked or time.monotonic() >= end:
                raise problem
            if to_ask:
                time.sleep(_AGAIN_SECONDS)
