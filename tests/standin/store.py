"""The objects of the stand-in cluster: made, changed and deleted as the API server does it.

Names and versions are given out here; a pod with a grace period, and what has finalizers, stays until it
is let go; what an object owns goes with it. Left out: conflicts of versions and of field managers,
defaults of what nobody here reads, and foreground deletion, for which `delete` has only the background.
"""

import copy
import random
import string
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.apiobjects import EVERYWHERE, GROUPS

Object = dict[str, Any]
Change = tuple[int, str, str, Object]  # version, place, ADDED | MODIFIED | DELETED, the object


class Refusal(Exception):
    """What the API server answers instead: an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def now() -> str:
    """Return the time as objects hold it: to the second."""
    return moment(datetime.now(UTC))


def moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def place_of(api_version: str, kind: str, namespace: str) -> str:
    """Return the path of all objects of a kind."""
    prefix = "/apis" if "/" in api_version else "/api"
    inside = "" if kind in EVERYWHERE else f"/namespaces/{namespace}"
    return f"{prefix}/{api_version}{inside}/{GROUPS[api_version][kind]}"


def path_of(one: Object) -> str:
    metadata = one["metadata"]
    place = place_of(one["apiVersion"], one["kind"], metadata.get("namespace", ""))
    return f"{place}/{metadata['name']}"


def owned_by(one: Object, owner: Object) -> bool:
    references = one["metadata"].get("ownerReferences") or []
    return any(reference["uid"] == owner["metadata"]["uid"] for reference in references)


def reference(owner: Object) -> Object:
    """Return what an object that a controller makes says of its owner."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class Store:
    """Objects by path. What it returns is not to be changed: `update` takes a changed copy."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.objects: dict[str, Object] = {}
        self.history: list[Change] = []
        self.version = 1

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects.get(f"{place_of(api_version, kind, namespace)}/{name}")

    def all(self, api_version: str, kind: str) -> Iterator[Object]:
        """Yield the objects of a kind in every namespace, oldest first."""
        with self.lock:
            found = [*self.objects.values()]
        yield from (one for one in found if (one["apiVersion"], one["kind"]) == (api_version, kind))

    def owned(self, owner: Object, api_version: str, kind: str) -> list[Object]:
        return [one for one in self.all(api_version, kind) if owned_by(one, owner)]

    def create(self, one: Object) -> Object:
        """Give an object its name, its identity and its version, and keep it."""
        one = copy.deepcopy(one)
        metadata = one["metadata"]
        if "name" not in metadata:
            letters = random.choices(string.ascii_lowercase + string.digits, k=5)  # noqa: S311
            metadata["name"] = metadata["generateName"] + "".join(letters)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        with self.lock:
            path = path_of(one)
            if path in self.objects:
                raise Refusal(409, f'{path.rsplit("/", 2)[1]} "{metadata["name"]}" already exists')
            return self._keep(path, "ADDED", one)

    def update(self, one: Object) -> Object:
        """Keep a changed object; what is being deleted and is held by nothing more is let go."""
        with self.lock:
            path = path_of(one)
            before = self.objects.get(path)
            if before is None or before["metadata"]["uid"] != one["metadata"]["uid"]:
                raise Refusal(404, f"{path} not found")
            if one == before:
                return before
            if one.get("spec") != before.get("spec"):
                one["metadata"]["generation"] = before["metadata"]["generation"] + 1
            kept = self._keep(path, "MODIFIED", one)
            if "deletionTimestamp" in kept["metadata"]:
                self._let_go(path)
            return kept

    def change(self, one: Object, **parts: Any) -> Object:
        """Replace parts of an object as it now is: `status`, `spec`, `metadata`."""
        with self.lock:
            held = self.objects.get(path_of(one))
            if held is None or held["metadata"]["uid"] != one["metadata"]["uid"]:
                return one  # deleted meanwhile
            return self.update({**held, **parts})

    def delete(self, one: Object, *, grace: int | None = None) -> None:
        """Delete an object: a pod that runs has `grace` seconds, its own by default."""
        with self.lock:
            path = path_of(one)
            held = self.objects.get(path)
            if held is None:
                return
            metadata = dict(held["metadata"])
            seconds = 0
            if held["kind"] == "Pod" and held["spec"].get("nodeName") and not finished(held):
                own = held["spec"].get("terminationGracePeriodSeconds", 30)
                seconds = own if grace is None else grace
            if "deletionTimestamp" in metadata:  # a second time only shortens
                seconds = min(seconds, metadata["deletionGracePeriodSeconds"])
                if seconds == metadata["deletionGracePeriodSeconds"]:
                    self._let_go(path)
                    return
            metadata["deletionTimestamp"] = moment(datetime.now(UTC) + timedelta(seconds=seconds))
            metadata["deletionGracePeriodSeconds"] = seconds
            self._keep(path, "MODIFIED", {**held, "metadata": metadata})
            self._let_go(path)

    def _let_go(self, path: str) -> None:
        """Remove an object that is being deleted, when no grace and no finalizer holds it."""
        held = self.objects[path]
        metadata = held["metadata"]
        if metadata["deletionGracePeriodSeconds"] or metadata.get("finalizers"):
            return
        del self.objects[path]
        self.version += 1
        self._tell(path, "DELETED", held)
        for other in [*self.objects.values()]:
            inside = held["kind"] == "Namespace" and other["metadata"].get("namespace")
            if inside == metadata["name"] or owned_by(other, held):
                self.delete(other)

    def _keep(self, path: str, change: str, one: Object) -> Object:
        self.version += 1
        one["metadata"] = {**one["metadata"], "resourceVersion": str(self.version)}
        self.objects[path] = one
        self._tell(path, change, one)
        return one

    def _tell(self, path: str, change: str, one: Object) -> None:
        self.history.append((self.version, path.rsplit("/", 1)[0], change, one))
        self.lock.notify_all()

    def event(self, about: Object, reason: str, message: str, *, kind: str = "Normal") -> None:
        """Record an event about an object."""
        metadata = about["metadata"]
        name = f"{metadata['name']}.{self.version:x}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata.get("namespace", "default")},
            "involvedObject": {"kind": about["kind"], "name": metadata["name"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "lastTimestamp": now(),
        }
        self.create(body)


def with_condition(
    conditions: list[Object] | None, kind: str, reason: str, message: str, *, status: str = "True"
) -> list[Object]:
    """Return conditions with this one as it now is; nothing is not made false."""
    found = [dict(one) for one in conditions or []]
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    held = next((one for one in found if one["type"] == kind), None)
    if held is None:
        return found if status == "False" else [*found, new | {"lastTransitionTime": now()}]
    if {key: held.get(key) for key in new} != new:
        held.update(new, lastTransitionTime=now())
    return found


def is_true(one: Object, kind: str) -> Object | None:
    """Return a condition of an object, if it is true."""
    held = one.get("status", {}).get("conditions") or []
    return next((c for c in held if c["type"] == kind and c["status"] == "True"), None)
