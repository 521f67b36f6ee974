"""Run a command in a pod's container, through the cluster's API.

ended = execute(cluster, "digits-0", ["sh", "-c", "kill -USR2 1"], container="trainer")
"""

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from kubernetes.stream.ws_client import WSClient
from websocket import ABNF

from k8s.base.errors import in_one_line
from k8s.cluster.client.api import Cluster, Forbidden, Object, fault_of, message_in
from trainer.config.exits import Exit, Fault

_PIECE = 32 * 1024  # bytes of a message; an API server refuses large ones
_SLOWEST = 1024**2  # bytes of input per second: for more input the time limit is longer
_AT_ONCE = 16  # pods
_LONGEST = 1024**2  # bytes of output; a pod may write without end
# Channels of the protocol (v4.channel.k8s.io): standard output, standard error; and how it ended.
_OUTPUT, _STATUS = (b"\1", b"\2"), b"\3"


@dataclass(frozen=True)
class Ended:
    """The exit code of a command and all that it wrote to standard output and standard error."""

    code: int
    output: str


def execute_in_each(
    cluster: Cluster,
    containers: Mapping[str, Object],
    command: Sequence[str],
    stdin: bytes = b"",
) -> dict[str, Ended | Fault]:
    """Run a command in a container of each pod; return the result or the fault by the pod's name."""

    def one(pod: str) -> Ended | Fault:
        try:
            return execute(cluster, pod, command, container=containers[pod]["name"], stdin=stdin)
        except Fault as fault:
            return fault

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(containers, pool.map(one, containers), strict=True))


def execute(
    cluster: Cluster, pod: str, command: Sequence[str], *, container: str, stdin: bytes = b""
) -> Ended:
    """Run a command and return its result. The command must know the length of `stdin`.

    The API cannot close standard input. Raises Forbidden (64) if the user may not exec, and Fault(69) if
    the command does not end within the cluster's timeout, which is longer for much input.
    """
    ended: Future[Ended] = Future()
    limit = cluster.timeout + len(stdin) / _SLOWEST

    def talk() -> None:
        try:
            ended.set_result(_talk(cluster, pod, command, container, stdin, limit))
        except BaseException as error:  # noqa: BLE001  # raised below
            ended.set_exception(error)

    # In a thread, because the client library has no time limit for a connection. It may be left behind.
    threading.Thread(target=talk, daemon=True).start()
    try:
        return ended.result(limit)
    except TimeoutError:
        raise _fault(cluster, pod, f"{command[0]}: no exit code in {limit:.3g} s") from None


def _talk(
    cluster: Cluster, pod: str, command: Sequence[str], container: str, stdin: bytes, limit: float
) -> Ended:
    deadline = time.monotonic() + limit
    # A separate client, because the library replaces the request method of the client it is given.
    core = client.CoreV1Api(client.ApiClient(cluster.client.configuration))
    try:
        opened: WSClient = stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            cluster.namespace,
            container=container,
            command=list(command),
            stdin=bool(stdin),
            stdout=True,
            stderr=True,
            tty=False,
            binary=True,
            _preload_content=False,
        )
    except (ApiException, OSError, ValueError) as error:
        raise _not_opened(cluster, pod, error) from None
    try:
        with contextlib.closing(opened):
            for start in range(0, len(stdin), _PIECE):
                opened.write_stdin(stdin[start : start + _PIECE])
            output, end = _read(opened, deadline)
            return Ended(_code(end), output.decode(errors="replace"))
    except Exception as error:  # noqa: BLE001  # of several libraries: the connection is lost
        raise _fault(cluster, pod, f"{command[0]}: no exit code: {in_one_line(error)}") from None


def _read(opened: WSClient, deadline: float) -> tuple[bytes, bytes]:
    """Return a command's output and its final status. Raises ValueError for too much output.

    The client's own update() may return only when the pod pauses, so this reads from its connection.
    """
    written, end = bytearray(), bytearray()
    while True:
        opened.sock.settimeout(max(0.001, deadline - time.monotonic()))
        operation, frame = opened.sock.recv_data_frame()
        if operation == ABNF.OPCODE_CLOSE:
            return bytes(written), bytes(end)
        channel, data = frame.data[:1], frame.data[1:]
        if channel == _STATUS:
            end += data
        elif channel in _OUTPUT:
            written += data
        if len(written) > _LONGEST:
            raise ValueError(f"it writes more than {_LONGEST:,} bytes")


def _code(end: bytes) -> int:
    """Read a command's exit code from its final status (v4.channel.k8s.io)."""
    status = json.loads(end)
    if status["status"] == "Success":
        return 0
    if status.get("reason") != "NonZeroExitCode":
        raise ValueError(status.get("message", ""))
    return int(status["details"]["causes"][0]["message"])


def _not_opened(cluster: Cluster, pod: str, error: Exception) -> Fault:
    """Return why there is no connection, from the answer to the handshake if there is one."""
    refused = error.__context__
    status, body = getattr(refused, "status_code", 0), getattr(refused, "resp_body", None)
    if not status:
        return _fault(cluster, pod, in_one_line(getattr(error, "reason", None) or error))
    message = message_in(body or b"") or str(getattr(refused, "status_message", ""))
    fault = fault_of(cluster, f"exec in {pod}", status, message)
    if not isinstance(fault, Forbidden):
        return fault
    return Forbidden(
        fault.code,
        f"{cluster.where}: exec in {pod}: you may not create pods/exec, which runs commands in pods; "
        "`render.py JOB --rbac user:NAME --exec` prints a Role that allows it",
    )


def _fault(cluster: Cluster, pod: str, text: str) -> Fault:
    return Fault(Exit.PEER, f"{cluster.where}: exec in {pod}: {text}")
