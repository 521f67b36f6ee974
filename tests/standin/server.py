"""The objects of a cluster, as its API server keeps them.

The unit tests set objects, status and logs directly; `python -m tests.standin` adds controllers and a
node that act on them. Left out: users, conflicts of versions and of field managers, and foreground
deletion.
"""

import copy
import random
import string
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.standin.logs import Log
from tests.standin.objects import (
    GROUPS,
    Object,
    collection,
    deleted,
    finished,
    namespace_in,
    now,
    owned_by,
    path_of,
    timestamp,
)

Answer = tuple[int, dict[str, str], str]  # status, headers, body
Query = dict[str, str]


class Refusal(Exception):
    """An error that the API answers with: an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Server:
    """`objects` by path. Do not change returned objects: `change` takes new parts.

    For tests: if `answer` returns something, it is the answer to a request; `forget()` makes a watch
    from an old version end with 410; `hang_up()` ends every watch; `groups` is what discovery shows;
    `requests` are the requests so far; `logs` are texts by the pod's name; `enter` makes the command
    that runs one in the pod at a path; `asks_for_token`: a request without one gets 401.
    """

    release = "v1.34.2"

    def __init__(
        self, *, identity: Callable[[str], Object] = lambda name: {"uid": f"uid-{name}"}
    ) -> None:
        self.identity = identity  # returns the first metadata of an object by its name
        self.objects: dict[str, Object] = {}
        self.groups = dict(GROUPS)
        self.requests: list[tuple[str, str]] = []
        self.asks_for_token = True
        self.answer: Callable[[str, str], Answer | None] = lambda _, __: None
        self.admit: Callable[[Object], None] = lambda _: None  # raises Refusal
        self._started = datetime.now(UTC).replace(microsecond=0)  # the time of a log's first line
        self.logs: dict[str, str] = {}
        self.log: Callable[[str, Query], Iterator[bytes]] = self._stored_log
        self.enter: Callable[[str, list[str]], list[str]] = _no_container
        self.changed = threading.Condition(threading.RLock())
        self.port = 0
        self.version = 1
        self.oldest = 0  # the version from which on a watch can start
        self.history: list[tuple[int, str, Object]] = []  # version, path and event
        self.watches: list[str] = []  # the paths that are watched now
        self.hung_up = 0  # how often

    # --- objects

    def path(self, api_version: str, kind: str, name: str) -> str:
        """Return an object's path in the unit tests' namespace."""
        return f"{collection(api_version, kind, 'lab')}/{name}"

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects.get(f"{collection(api_version, kind, namespace)}/{name}")

    def all(self, api_version: str, kind: str) -> list[Object]:
        """Return the objects of a kind in every namespace, oldest first."""
        with self.changed:
            found = [*self.objects.values()]
        return [one for one in found if (one["apiVersion"], one["kind"]) == (api_version, kind)]

    def owned(self, owner: Object, api_version: str, kind: str) -> list[Object]:
        return [one for one in self.all(api_version, kind) if owned_by(one, owner)]

    def put(self, api_version: str, kind: str, found: Object) -> None:
        """Store an object as it is; replace an existing one."""
        path = self.path(api_version, kind, found["metadata"]["name"])
        self.store(path, {"apiVersion": api_version, "kind": kind} | found)

    def store(self, path: str, one: Object) -> Object:
        with self.changed:
            event = "MODIFIED" if path in self.objects else "ADDED"
            metadata = self.identity(path.rsplit("/", 1)[1]) | one["metadata"]
            if namespace := namespace_in(path):
                metadata["namespace"] = namespace
            self.objects[path] = self._publish(path, event, one | {"metadata": metadata})
            return self.objects[path]

    def create(self, one: Object) -> Object:
        metadata = copy.deepcopy(one["metadata"])
        if "name" not in metadata:
            letters = random.choices(string.ascii_lowercase + string.digits, k=5)  # noqa: S311
            metadata["name"] = metadata["generateName"] + "".join(letters)
        one = copy.deepcopy(one) | {"metadata": metadata}
        with self.changed:
            if (path := path_of(one)) in self.objects:
                raise Refusal(409, f'{path.rsplit("/", 2)[1]} "{metadata["name"]}" already exists')
            return self.store(path, one)

    def ensure(self, one: Object) -> Object:
        """Create an object unless one of its name exists; return the stored object."""
        with self.changed:
            return self.objects.get(path_of(one)) or self.create(one)

    def try_to_create(self, one: Object, *, owner: Object) -> bool:
        """Create an object for its owner; a refusal becomes an event of the owner."""
        try:
            self.admit(one)
            self.create(one)
        except Refusal as refusal:
            self.event(owner, f"FailedCreate{one['kind']}", refusal.message, kind="Warning")
            return False
        return True

    def change(self, one: Object, **parts: Any) -> Object:
        """Replace parts of the current object: `status`, `spec`, `metadata`."""
        with self.changed:
            path = path_of(one)
            before = self.objects.get(path)
            if before is None or before["metadata"]["uid"] != one["metadata"]["uid"]:
                return one  # deleted in the meantime
            if (after := before | parts) == before:
                return before
            after = self.store(path, after)
            if deleted(after):
                self._remove_if_free(path)
            return after

    def delete(self, one: Object, *, grace: int | None = None) -> None:
        """Delete an object: a running pod has `grace` seconds, by default its own grace period."""
        with self.changed:
            path = path_of(one)
            if (found := self.objects.get(path)) is None:
                return
            seconds, metadata = 0, dict(found["metadata"])
            if found["kind"] == "Pod" and found["spec"].get("nodeName") and not finished(found):
                own = found["spec"].get("terminationGracePeriodSeconds", 30)
                seconds = own if grace is None else grace
            if deleted(found):  # a second deletion can only shorten
                seconds = min(seconds, metadata["deletionGracePeriodSeconds"])
            if seconds != metadata.get("deletionGracePeriodSeconds"):
                end = datetime.now(UTC) + timedelta(seconds=seconds)
                metadata["deletionTimestamp"] = timestamp(end)
                metadata["deletionGracePeriodSeconds"] = seconds
                self.store(path, found | {"metadata": metadata})
            self._remove_if_free(path)

    def _remove_if_free(self, path: str) -> None:
        """Remove an object that is being deleted, unless its grace period or a finalizer keeps it."""
        metadata = self.objects[path]["metadata"]
        if not metadata["deletionGracePeriodSeconds"] and not metadata.get("finalizers"):
            self.remove(path)

    def remove(self, path: str) -> Object:
        """Remove an object at once; delete what it owns, or a namespace's objects."""
        with self.changed:
            one = self.objects.pop(path)
            self._publish(path, "DELETED", one)
            for place, other in [*self.objects.items()]:
                inside = one["kind"] == "Namespace" and f"/{one['metadata']['name']}/" in place
                if inside or owned_by(other, one):
                    self.delete(other)
            return one

    def _publish(self, path: str, event: str, one: Object) -> Object:
        self.version += 1
        one = one | {"metadata": one["metadata"] | {"resourceVersion": str(self.version)}}
        self.history.append((self.version, path, {"type": event, "object": one}))
        self.changed.notify_all()
        return one

    def event(self, about: Object, reason: str, message: str, *, kind: str = "Normal") -> None:
        """Record an event about an object."""
        metadata = {"name": f"{about['metadata']['name']}.{self.version:x}"}
        metadata["namespace"] = about["metadata"].get("namespace", "default")
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": metadata,
                "involvedObject": {"kind": about["kind"], "name": about["metadata"]["name"]},
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "lastTimestamp": now(),
            }
        )

    def forget(self) -> None:
        """Forget all changes, so that a watch from an old version ends with 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()

    def hang_up(self) -> None:
        """End every watch."""
        with self.changed:
            self.hung_up += 1
            self.changed.notify_all()

    def _stored_log(self, path: str, query: Query) -> Iterator[bytes]:
        name = path.rsplit("/", 1)[1] + (".previous" if query.get("previous") else "")
        if name not in self.logs:
            raise Refusal(400, "no log yet")
        lines = self.logs[name].encode().splitlines(keepends=True)
        times = (self._started + timedelta(seconds=number) for number in range(len(lines)))
        return Log(lines=[*zip(times, lines, strict=True)], ended=True).read(query)


def _no_container(path: str, _: list[str]) -> list[str]:
    raise Refusal(400, f"{path}: container not found")
