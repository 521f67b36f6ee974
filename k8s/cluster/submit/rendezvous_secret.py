"""Make the Secret with which the nodes of a job authenticate each other; its value is never shown.

made = make(cluster, manifests); own(cluster, made, job)
"""

import base64
import contextlib
import logging
import secrets
from collections.abc import Sequence

from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster, Forbidden, Object
from k8s.cluster.state import mappings

VARIABLE = "MUSTER_RENDEZVOUS_SECRET"

log = logging.getLogger("k8s")


def make(cluster: Cluster, manifests: list[Object], *, labels: dict[str, str]) -> Object | None:
    """Make the Secret that the pods of the manifests refer to; replace one that an earlier job left.

    Returns None if they refer to none. Warns and returns None if the user may not make one.
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
            "no Secret for the rendezvous, so only the NetworkPolicy protects it: %s", refusal
        )
        return None
    return secret


def own(cluster: Cluster, secret: Object, owner: Object) -> None:
    """Let the cluster delete the Secret with the job's object; if the user may not, the Secret stays."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = secret["metadata"] | {"ownerReferences": [reference]}
    with contextlib.suppress(Forbidden):
        objects.apply(cluster, secret | {"metadata": metadata})


def find_reference(manifests: Sequence[Object]) -> dict[str, str] | None:
    """Return the name and key of the Secret that the pods of the manifests refer to, or None."""
    for found in mappings(list(manifests)):
        if found.get("name") == VARIABLE and "valueFrom" in found:
            reference: dict[str, str] = found["valueFrom"]["secretKeyRef"]
            return reference
    return None
