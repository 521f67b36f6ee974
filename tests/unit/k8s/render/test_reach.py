"""Who reaches what, computed from the rendered NetworkPolicies: the table of k8s/SECURITY.md."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.rendering import CLUSTER, job, pods, render

METADATA = "kubernetes.io/metadata.name"
OWN = "research"  # the job's namespace
PORTS = (22, 53, 443, 6006, 9400, 29500, 40000)  # what may be open somewhere


@dataclass(frozen=True)
class Place:
    """A pod, by its labels and namespace, or an address outside the cluster."""

    labels: Mapping[str, str]
    namespace: str = OWN
    address: str = "10.1.2.3"
    inside: bool = True


def reaches(policies: list[dict[str, Any]], source: Place, target: Place) -> list[int]:
    """Return the ports at which `source` reaches `target`, as NetworkPolicies are defined to mean."""
    return [
        port
        for port in PORTS
        if _allows(policies, source, target, port, "Egress")
        and _allows(policies, target, source, port, "Ingress")
    ]


def _allows(
    policies: list[dict[str, Any]], own: Place, peer: Place, port: int, direction: str
) -> bool:
    """Return whether the policies of the pod `own` allow its traffic with `peer` in a direction."""
    mine = [
        one["spec"]
        for one in policies
        if own.inside
        and own.namespace == OWN
        and _selected(one["spec"]["podSelector"], own.labels)
        and direction in one["spec"]["policyTypes"]
    ]
    side = "to" if direction == "Egress" else "from"
    rules = [rule for spec in mine for rule in spec.get(direction.lower()) or []]
    return not mine or any(
        (not rule.get(side) or any(_is(peer, one) for one in rule[side]))
        and (not rule.get("ports") or any(_port(one) == port for one in rule["ports"]))
        for rule in rules
    )


def _port(rule: Mapping[str, Any]) -> int:
    return {"http": 6006}.get(rule["port"]) or int(rule["port"])


def _is(place: Place, peer: Mapping[str, Any]) -> bool:
    if "ipBlock" in peer:
        network = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return ipaddress.ip_address(place.address) in network
    namespaces = peer.get("namespaceSelector")
    there = (
        place.namespace == OWN
        if namespaces is None
        else _selected(namespaces, {METADATA: place.namespace})
    )
    return place.inside and there and _selected(peer.get("podSelector", {}), place.labels)


def _selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


NEIGHBOUR = Place({"app": "other"})
MONITOR = Place({"app": "prometheus"}, namespace="monitoring")
STRANGER = Place({"app": "other"}, namespace="default")
DNS = Place({"k8s-app": "kube-dns"}, namespace="kube-system")
CACHE = Place({}, namespace="", address="169.254.20.10", inside=False)
INTERNET_6 = Place({}, namespace="", address="2001:db8::7", inside=False)
INTERNET = Place({}, namespace="", address="203.0.113.7", inside=False)
STORE = Place({}, namespace="", address="192.0.2.9", inside=False)
RANK, BOARD = "a pod of the job", "TensorBoard"
FETCH = "443 with `data.pull`, 22 or 443 with `code.git`"

# A row of the page: from, to, what is allowed; and the ports of PORTS that this means in the job below.
ROWS: list[tuple[str, str, str, Any, Any, list[int]]] = [
    (RANK, RANK, "every port", RANK, RANK, [*PORTS]),
    ("another pod of the namespace", RANK, "`metrics.port`", NEIGHBOUR, RANK, [9400]),
    ("a pod of a namespace in `metrics.from`", RANK, "`metrics.port`", MONITOR, RANK, [9400]),
    ("a pod of any other namespace", RANK, "nothing", STRANGER, RANK, []),
    ("another pod of the namespace", BOARD, "its port", NEIGHBOUR, BOARD, [6006]),
    ("a pod of a namespace in `tensorboard.from`", BOARD, "its port", MONITOR, BOARD, [6006]),
    ("a pod of any other namespace", BOARD, "nothing", STRANGER, BOARD, []),
    (RANK, "the cluster's DNS", "53", RANK, DNS, [22, 53]),
    (RANK, "the cluster's DNS", "53", RANK, CACHE, [22, 53]),
    (RANK, "what `network.egress` names", "its ports", RANK, STORE, [22, 443]),
    (RANK, "`network.fetchFrom`, by default anything", FETCH, RANK, INTERNET, [22]),
    (RANK, "`network.fetchFrom`, by default anything", FETCH, RANK, INTERNET_6, [22]),
    (RANK, "`network.fetchFrom`, by default anything", FETCH, RANK, STRANGER, [22]),
    (BOARD, "anything", "nothing", BOARD, STRANGER, []),
    (BOARD, "anything", "nothing", BOARD, INTERNET, []),
]


@pytest.fixture(scope="module", params=CLUSTER)
def made(request: pytest.FixtureRequest) -> Any:
    values = job(
        namespace=OWN,
        metrics={"port": 9400, "from": ["monitoring"]},
        tensorboard={"from": ["monitoring"]},
        checkpoints={"pvc": "runs"},
        network={"egress": [{"cidr": "192.0.2.0/24", "ports": [443]}]},
        code={"git": "git@git.example.com:team/models", "revision": "a" * 40, "secret": "key"},
    )
    values = {key: value for key, value in values.items() if key not in request.param}
    return render(values, request.param)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} to {row[1]}")
def test_a_row_of_the_table(row: Any, made: Any) -> None:
    policies = [one for one in made.objects if one["kind"] == "NetworkPolicy"]
    (deployment,) = [one for one in made.objects if one["kind"] == "Deployment"]
    board = Place(deployment["spec"]["template"]["metadata"]["labels"])
    for pod in pods(made):
        places = {RANK: Place(pod["metadata"]["labels"]), BOARD: board}
        source, target = (places[one] if isinstance(one, str) else one for one in row[3:5])
        assert reaches(policies, source, target) == row[5]


def test_the_page_has_these_rows() -> None:
    page = (ROOT / "k8s/SECURITY.md").read_text(encoding="utf-8")
    table = page.split("## Who reaches what\n")[1].split("\n## ")[0]
    shown = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert shown == list(dict.fromkeys(f"| {a} | {b} | {c} |" for a, b, c, *_ in ROWS))


def policy(**network: Any) -> list[dict[str, Any]]:
    made = render(
        job(network=network, code={"git": "https://git.example.com/m", "revision": "a" * 40}), "job"
    )
    return [one for one in made.objects if one["kind"] == "NetworkPolicy"]


def test_fetching_from_one_network_alone() -> None:
    policies = policy(fetchFrom=["192.0.2.0/24"])
    (labels,) = [one["spec"]["podSelector"]["matchLabels"] for one in policies]
    own = Place(labels, namespace=OWN)
    assert reaches(policies, own, STORE) == [443]
    assert reaches(policies, own, INTERNET) == reaches(policies, own, INTERNET_6) == []


def test_dns_that_is_anywhere() -> None:
    policies = policy(dns="any", fetchFrom=[])
    (labels,) = [one["spec"]["podSelector"]["matchLabels"] for one in policies]
    assert reaches(policies, Place(labels), STRANGER) == [53]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_without_isolation_there_is_no_policy(launcher: str) -> None:
    values = job(
        network={"isolate": False},
        metrics={"port": 9400},
        tensorboard={},
        checkpoints={"pvc": "runs"},
    )
    assert "NetworkPolicy" not in render(values, launcher).text
