"""What each launcher's controller gives to pod i: its variables, and the host name of the pod.

The controllers are those of the stand-in cluster, with an API without HTTP. With compose, the host name
of a container is the name of its service.
"""

from itertools import count
from typing import Any

import yaml

from tests.rendering import render
from tests.standin import jobs, jobsets, pytorchjobs, volcano
from tests.standin.image import environment
from tests.standin.names import names_of
from tests.standin.server import Server

UID = "0d1f-uid"  # how each object's uid ends
ADDRESS = "10.0.0.9"

_numbers = count()


def given(launcher: str, values: dict[str, Any], index: int) -> dict[str, str]:
    """Return the environment of the container on node `index`."""
    if launcher == "compose":
        service: dict[str, str] = services(values)[f"node-{index}"]["environment"]
        return service
    pod = _pods(_cluster(launcher, values))[index] | {"status": {"podIP": ADDRESS}}
    container = pod["spec"]["containers"][0]
    names = [one["name"] for one in container["env"]]
    # If a variable is set twice, the controllers differ in which one counts.
    assert len(names) == len(set(names)), names
    return environment(pod, container)


def host(launcher: str, values: dict[str, Any], index: int) -> str:
    """Return the name by which the other nodes find node `index`."""
    if launcher == "compose":
        return list(services(values))[index]
    server = _cluster(launcher, values)
    pod = _pods(server)[index]
    (service,) = (one for one in server.all("v1", "Service") if names_of(one, [(pod, ADDRESS)]))
    # The operator's pods are found when they run; elsewhere the master is found before it is ready.
    assert service["spec"]["publishNotReadyAddresses"] or launcher == "pytorchjob"
    (line,) = names_of(service, [(pod, ADDRESS)])
    return line.split()[1]


def services(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(render(values, "compose").text)["services"]
    return found


def _cluster(launcher: str, values: dict[str, Any]) -> Server:
    """Return an API with a rendered job and with the objects that its controllers have made."""
    server = Server(identity=lambda _: {"uid": f"{next(_numbers)}-{UID}"})
    for one in render(values, launcher).objects:
        server.create(one | {"metadata": one["metadata"] | {"namespace": "lab"}})
    for controller in (jobsets, jobs, pytorchjobs, volcano):
        for _ in range(2):  # a JobSet of a TrainJob, or a Job of a JobSet, comes first
            controller.sync(server)
    return server


def _pods(server: Server) -> dict[int, dict[str, Any]]:
    """Return the pods in the order of their nodes, in which they are made."""
    return dict(enumerate(server.all("v1", "Pod")))
