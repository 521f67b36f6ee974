"""Requests to a cluster's API: with a time limit, retries on 429 and 5xx, and errors of one line.

job = call(cluster, "GET", "/apis/batch/v1/namespaces/research/jobs/digits")
"""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from k8s.base.errors import in_one_line
from trainer.config.exits import Exit, Fault

Object = dict[str, Any]

FIELD_MANAGER = "muster"
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
    headers = {"Accept": "application/json", "Content-Type": content_type}
    options = {"header_params": headers, "body": body, "response_type": "object"}
    try:
        answer = _request(cluster, method, path, query or {}, options)
    except RecursionError:
        answer = "JSON nested too deeply"
    except UnicodeDecodeError as error:
        answer = error.object
    if isinstance(answer, dict):
        return answer
    text = repr(answer)[:80]
    raise Fault(Exit.PEER, f"{cluster.where}: {method} {path} was not answered with JSON: {text}")


def stream(
    cluster: Cluster, path: str, query: Mapping[str, object], *, silence: float
) -> urllib3.HTTPResponse:
    """Open a stream: a log or a watch. The caller closes it.

    A read raises urllib3's HTTPError after `silence` seconds without a byte. Raises what `call` raises.
    """
    options = {"_preload_content": False}
    answer: Any = _request(cluster, "GET", path, query, options, silence=silence)
    return answer  # type: ignore[no-any-return]


def _request(  # what a request is
    cluster: Cluster,
    method: str,
    path: str,
    query: Mapping[str, object],
    options: Mapping[str, object],
    *,
    silence: float | None = None,
) -> object:
    """Return the client's answer, retried until the cluster's timeout."""
    request = f"{method} {path}"
    deadline = time.monotonic() + cluster.timeout
    pause = _FIRST_PAUSE
    while True:
        least = 0.0
        try:
            left = max(0.1, deadline - time.monotonic())
            return cluster.client.call_api(
                path,
                method,
                query_params=list(query.items()),
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=left if silence is None else (left, silence),
                **options,
            )
        except ApiException as error:
            problem = fault_of(cluster, error, request)
            if problem.code != Exit.PEER or isinstance(problem, Gone):
                raise problem from None
            least = _retry_after(error)
        except urllib3.exceptions.HTTPError as error:
            problem = Fault(
                Exit.PEER, f"{cluster.where}: no answer to {request}: {in_one_line(error)}"
            )
        # jitter, so that many clients do not retry at the same time
        wait = max(least, pause) * random.uniform(1.0, 1.4)  # noqa: S311
        if time.monotonic() + wait >= deadline:
            raise problem
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


def fault_of(cluster: Cluster, error: ApiException, request: str) -> Fault:
    """Return the fault of an API server's answer to a request."""
    reason = in_one_line(_message(error))
    line = f"{cluster.where}: {request}: {error.status}: {reason}"
    if error.status == 404:
        return Missing(Exit.CONFIG, line)
    if error.status == 410:
        return Gone(Exit.PEER, line)
    if error.status in _TRANSIENT and not reason.startswith(_UNKNOWN_FIELD):
        return Fault(Exit.PEER, f"the cluster cannot answer now: {line}")
    # A quota or an admission webhook also answers 403; a Role does not help then.
    if error.status == 401 or (error.status == 403 and 'User "' in reason):
        return Forbidden(
            Exit.CONFIG,
            f"not allowed: {line}; `render.py JOB --rbac user:NAME` prints the Role that is needed",
        )
    return Refused(Exit.CONFIG, f"the cluster refuses the request: {line}")


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _retry_after(error: ApiException) -> float:
    text = str((error.headers or {}).get("Retry-After", ""))
    return float(text) if text.isdecimal() else 0.0
