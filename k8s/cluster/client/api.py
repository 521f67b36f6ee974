"""Requests to a cluster's API: bounded, tried again on 429 and 5xx, and one line when they fail.

job = call(cluster, "GET", "/apis/batch/v1/namespaces/research/jobs/digits")
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from trainer.config.exits import Exit, Fault

Object = dict[str, Any]

FIELD_MANAGER = "muster"
_TRANSIENT = {429, 500, 502, 503, 504}
# What Kubernetes answers with 500 to an apply that says a field it does not know; it stays so.
_MISSAID = "failed to create typed patch object"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds between two attempts


@dataclass(frozen=True)
class Cluster:
    """A connection; `where` says in words which context and namespace it goes to.

    A request is given up after `timeout` seconds, all its attempts together.
    """

    client: Any
    namespace: str
    where: str
    timeout: float = 30.0


class Missing(Fault):
    """What was asked for is not there."""


class Gone(Fault):
    """What was asked for from a version on is kept no longer: it must be listed anew."""


class Refused(Fault):
    """The cluster does not take what a request says."""


class Forbidden(Fault):
    """Whoever asks may not."""


def call(
    cluster: Cluster,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    content_type: str = "application/json",
) -> Object:
    """Return what the API answers to a request that may safely be made twice.

    Raises Missing on 404, Forbidden and Refused (64) when that is the answer, and Fault(69) when there
    is no sensible answer in time.
    """

    def once(left: float) -> object:
        return cluster.client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            response_type="object",
            _return_http_data_only=True,
            _request_timeout=left,
        )

    answer = _attempts(cluster, f"{method} {path}", once)
    if isinstance(answer, dict):
        return answer
    text = repr(answer)[:80]
    raise Fault(Exit.PEER, f"{cluster.where}: {method} {path} was answered with no JSON: {text}")


def stream(
    cluster: Cluster, path: str, query: Mapping[str, object], *, silence: float
) -> urllib3.HTTPResponse:
    """Open an answer that is read as it comes: a log or a watch; whoever asked closes it.

    Reading it raises urllib3's HTTPError after `silence` seconds without a byte. Raises as `call` does.
    """

    def once(left: float) -> object:
        return cluster.client.call_api(
            path,
            "GET",
            query_params=list(query.items()),
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=(left, silence),
        )

    answer: Any = _attempts(cluster, f"GET {path}", once)
    return answer  # type: ignore[no-any-return]


def _attempts(cluster: Cluster, what: str, once: Callable[[float], object]) -> object:
    """Return what `once` does, tried again until the cluster's time is up."""
    deadline = time.monotonic() + cluster.timeout
    pause = _FIRST_PAUSE
    while True:
        least = 0.0
        try:
            return once(max(0.1, deadline - time.monotonic()))
        except ApiException as error:
            problem = _words(cluster, error, what)
            if problem.code != Exit.PEER or isinstance(problem, Gone):
                raise problem from None
            least = _retry_after(error)
        except urllib3.exceptions.HTTPError as error:
            problem = Fault(
                Exit.PEER, f"{cluster.where}: no answer to {what}: {in_one_line(error)}"
            )
        # at different times, so that clients which were turned away together do not come back together
        wait = max(least, pause) * random.uniform(1.0, 1.4)  # noqa: S311
        if time.monotonic() + wait >= deadline:
            raise problem
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


def in_one_line(error: object) -> str:
    """Return an error's words without line ends."""
    return " ".join(str(error).split())


def _words(cluster: Cluster, error: ApiException, what: str) -> Fault:
    reason = in_one_line(_message(error))
    line = f"{cluster.where}: {what}: {error.status}: {reason}"
    if error.status == 404:
        return Missing(Exit.CONFIG, line)
    if error.status == 410:
        return Gone(Exit.PEER, line)
    if error.status in _TRANSIENT and not reason.startswith(_MISSAID):
        return Fault(Exit.PEER, f"the cluster cannot answer now: {line}")
    # a quota and an admission answer 403 as well, and no Role helps against them
    if error.status == 401 or (error.status == 403 and 'User "' in reason):
        return Forbidden(
            Exit.CONFIG,
            f"not allowed: {line}; `render.py JOB --rbac user:NAME` has the Role it takes",
        )
    return Refused(Exit.CONFIG, f"the cluster refuses it: {line}")


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _retry_after(error: ApiException) -> float:
    text = str((error.headers or {}).get("Retry-After", ""))
    return float(text) if text.isdecimal() else 0.0
