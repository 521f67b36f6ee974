"""Requests to a cluster's API: with a time limit, retries on 429 and 5xx, and errors of one line.

job = call(cluster, "GET", "/apis/batch/v1/namespaces/research/jobs/digits")
"""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, SSLError
from urllib3.util import Timeout

from k8s.base.errors import in_one_line
from trainer.config.exits import Exit, Fault

Object = dict[str, Any]

FIELD_MANAGER = "muster"
# Logs are not JSON.
_HEADERS = {"Accept": "application/json, */*", "User-Agent": FIELD_MANAGER}
_TRANSIENT = {429, 500, 502, 503, 504}
# Kubernetes answers 500 to an apply with an unknown field; a retry would not help.
_UNKNOWN_FIELD = "failed to create typed patch object"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds between two attempts


@dataclass(frozen=True)
class Cluster:
    """A connection; `where` names its context and namespace in messages.

    A request fails after `timeout` seconds, retries included.
    """

    client: Any
    namespace: str
    where: str
    timeout: float = 30.0

    def close(self) -> None:
        """Close the idle sockets. The socket of a stream is closed by the stream's reader."""
        pools = self.client.rest_client.pool_manager.pools
        for host in pools.keys():  # noqa: SIM118  # urllib3's container is not iterable
            pools[host].close()


class Missing(Fault):
    """404: there is no such object or API."""


class Gone(Fault):
    """410: the server has dropped the version to start from; list again."""


class Refused(Fault):
    """The cluster refuses a request as invalid."""


class Forbidden(Fault):
    """The user may not make this request."""


def call(
    cluster: Cluster,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    content_type: str = "application/json",
) -> Object:
    """Return the API's answer to a request, which must be safe to repeat.

    Raises Missing, Forbidden and Refused (64), and Fault(69) if no valid answer comes in time.
    """
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": content_type}
    answer = _request(cluster, method, path, query, headers=headers, body=text)
    try:
        found = json.loads(answer.data)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        found = None
    if isinstance(found, dict):
        return found
    where = f"{cluster.where}: {method} {path}"
    raise Fault(Exit.PEER, f"{where} was not answered with JSON: {answer.data[:80]!r}")


def stream(
    cluster: Cluster, path: str, query: Mapping[str, object], *, silence: float
) -> urllib3.BaseHTTPResponse:
    """Open a stream: a log or a watch. The caller closes it.

    A read raises urllib3's HTTPError after `silence` seconds without a byte. Raises what `call` raises.
    """
    return _request(cluster, "GET", path, query, silence=silence)


def tokens_of(configuration: Any) -> dict[str, str]:
    """Return the headers that authenticate a request; a client certificate needs none."""
    return {one["key"]: one["value"] for one in configuration.auth_settings().values()}


def _request(
    cluster: Cluster,
    method: str,
    path: str,
    query: Mapping[str, object] | None,
    *,
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
    silence: float | None = None,
) -> urllib3.BaseHTTPResponse:
    """Return the server's answer, retried until the cluster's timeout.

    The client library opens the connections and knows the credentials. urllib3, on which it is built,
    sends the request, because the library's own call is another one from version 36 on.
    """
    request, settings = f"{method} {path}", cluster.client.configuration
    url = settings.host + path + (f"?{urlencode(query)}" if query else "")
    deadline = time.monotonic() + cluster.timeout
    pause = _FIRST_PAUSE
    while True:
        least, left = 0.0, max(0.1, deadline - time.monotonic())
        tokens = tokens_of(settings)  # each time, because the client may renew one
        try:
            answer: urllib3.BaseHTTPResponse = cluster.client.rest_client.pool_manager.request(
                method,
                url,
                headers={**_HEADERS, **tokens, **(headers or {})},
                body=body,
                timeout=Timeout(total=left) if silence is None else Timeout(left, silence),
                preload_content=silence is None,
            )
            if 200 <= answer.status < 300:
                return answer
            message = message_in(answer.data) or str(answer.reason)
        except SSLError as error:
            raise Fault(
                Exit.CONFIG,
                f"{cluster.where}: no secure connection: {in_one_line(error)}; check the cluster's "
                "certificate-authority in the kubeconfig",
            ) from None
        except HTTPError as error:
            problem = Fault(
                Exit.PEER, f"{cluster.where}: no answer to {request}: {in_one_line(error)}"
            )
        else:
            problem = fault_of(cluster, request, answer.status, message)
            if problem.code != Exit.PEER or isinstance(problem, Gone):
                raise problem
            asked = answer.headers.get("Retry-After", "")
            least = float(asked) if asked.isdecimal() else 0.0
        # jitter, so that many clients do not retry at the same time
        wait = max(least, pause) * random.uniform(1.0, 1.4)  # noqa: S311
        if time.monotonic() + wait >= deadline:
            raise problem
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


def fault_of(cluster: Cluster, request: str, status: int, message: str) -> Fault:
    """Return the fault that an API server's answer to a request stands for."""
    reason = in_one_line(message)
    line = f"{cluster.where}: {request}: {status}: {reason}"
    if status == 404:
        return Missing(Exit.CONFIG, line)
    if status == 410:
        return Gone(Exit.PEER, line)
    if status in _TRANSIENT and not reason.startswith(_UNKNOWN_FIELD):
        return Fault(Exit.PEER, f"the cluster cannot answer now: {line}")
    # A quota or an admission webhook also answers 403; a Role does not help then.
    if status == 401 or (status == 403 and 'User "' in reason):
        return Forbidden(
            Exit.CONFIG,
            f"not allowed: {line}; `render.py JOB --rbac user:NAME` prints the Role that is needed",
        )
    return Refused(Exit.CONFIG, f"the cluster refuses the request: {line}")


def message_in(body: bytes) -> str:
    """Return the message of an answer that is an error; empty if it has none."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
