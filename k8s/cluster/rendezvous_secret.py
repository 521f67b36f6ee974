"""Make the Secret with which the nodes of a job know each other; its value is never shown.

made = make(cluster, manifests); own(cluster, made, job)
"""

import base64
import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Object

VARIABLE = "MUSTER_RENDEZVOUS_SECRET"

log = logging.getLogger("k8s")


def make(cluster: Cluster, manifests: list[Object], *, labels: dict[str, str]) -> Object | None:
    """Make the Secret that the pods of the manifests refer to, anew if an earlier job left one.

    Returns None where they refer to none, and with a warning where the user may not make one.
    """
    reference = find_reference(manifests)
    if reference is None:
        return None
    value = secrets.token_hex(32).encode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": reference["name"], "labels": labels},
        "type": "Opaque",
        "immutable": True,
        "data": {reference["key"]: base64.b64encode(value).decode()},
    }
    try:
        objects.delete(cluster, secret)
        objects.apply(cluster, secret)
    except Forbidden as refusal:
        log.warning(
            "no Secret for the rendezvous, which only the NetworkPolicy protects then: %s", refusal
        )
        return None
    return secret


def own(cluster: Cluster, secret: Object, owner: Object) -> None:
    """Let the cluster delete the Secret with the job's object; without the right to, it stays."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = secret["metadata"] | {"ownerReferences": [reference]}
    with contextlib.suppress(Forbidden):
        objects.apply(cluster, secret | {"metadata": metadata})


def find_reference(manifests: Sequence[Object]) -> dict[str, str] | None:
    """Return the name and key of the Secret that the pods of manifests refer to; None for none."""
    return next(_references(list(manifests)), None)


def _references(found: Any) -> Iterator[dict[str, str]]:
    """Yield each reference to the Secret in manifests, wherever the pod's template stands."""
    if isinstance(found, list):
        for one in found:
            yield from _references(one)
    elif isinstance(found, dict):
        if found.get("name") == VARIABLE and "valueFrom" in found:
            yield found["valueFrom"]["secretKeyRef"]
        for one in found.values():
            yield from _references(one)
