"""Which pod can reach what under the NetworkPolicies of every golden: the table of k8s/SECURITY.md."""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import pytest

from k8s.jobfile.spec import JobSpec
from k8s.jobfile.validate import validate
from tests import goldens
from tests.conftest import ROOT
from tests.rendering import CLUSTER, job, pods, render

METADATA = "kubernetes.io/metadata.name"
OWN = "research"  # the job's namespace
# Each port that a golden's policy names, and two other ports.
PORTS = (22, 53, 443, 2049, 5353, 6006, 9400, 29500, 40000)


@dataclass(frozen=True)
class Place:
    """A pod, by its labels and namespace, or an address outside the cluster."""

    labels: Mapping[str, str]
    namespace: str = OWN
    address: str = "10.1.2.3"
    inside: bool = True
    rank: bool = False


def reaches(policies: list[dict[str, Any]], source: Place, target: Place) -> list[int]:
    """Return the ports at which `source` reaches `target`, as NetworkPolicies are defined."""
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
    found = {"http": 6006}.get(rule["port"]) or int(rule["port"])
    assert found in PORTS
    return found


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


RANK, BOARD = "a pod of the job", "TensorBoard"
NEIGHBOUR = "another pod of the namespace"
MONITOR = "a pod of a namespace in `metrics.from`"
VISITOR = "a pod of a namespace in `tensorboard.from`"
STRANGER = "a pod of any other namespace"
DNS, ANYTHING = "the cluster's DNS", "anything"
PLACES = {
    NEIGHBOUR: Place({"app": "other"}),
    MONITOR: Place({"app": "prometheus"}, namespace="monitoring"),
    VISITOR: Place({"app": "nginx"}, namespace="ingress-nginx"),
    STRANGER: Place({"app": "other"}, namespace="default"),
    DNS: Place({"k8s-app": "kube-dns"}, namespace="kube-system"),
    "a cache on the machine": Place({}, namespace="", address="169.254.20.10", inside=False),
    "the internet": Place({}, namespace="", address="203.0.113.7", inside=False),
    "its IPv6": Place({}, namespace="", address="2001:db8::7", inside=False),
    "a data store": Place({}, namespace="", address="10.20.0.9", inside=False),
    "a mirror": Place({}, namespace="", address="10.30.0.9", inside=False),
}


def metrics(spec: JobSpec, peer: Place) -> Iterable[int]:
    asked = spec.metrics
    return [asked.port] if asked and peer.namespace in (OWN, *asked.from_) else []


def tensorboard(spec: JobSpec, peer: Place) -> Iterable[int]:
    asked = spec.tensorboard
    return [6006] if asked and peer.namespace in (OWN, *asked.from_) else []


def egress(spec: JobSpec, peer: Place) -> Iterable[int]:
    found = [one for one in spec.network.egress if _is(peer, {"ipBlock": {"cidr": one.cidr}})]
    return chain.from_iterable(one.ports or PORTS for one in found)


def fetch(spec: JobSpec, peer: Place) -> Iterable[int]:
    if any(_is(peer, {"ipBlock": {"cidr": one}}) for one in spec.network.fetch_from):
        if spec.code and spec.code.git:
            yield 443 if spec.code.git.startswith("https:") else 22
        if spec.data and spec.data.pull:
            yield 443


def names(_: JobSpec, peer: Place) -> Iterable[int]:
    return [53] if peer in (PLACES[DNS], PLACES["a cache on the machine"]) else []


def every(_: JobSpec, peer: Place) -> Iterable[int]:
    return PORTS if peer.rank else []


def none(*_: object) -> Iterable[int]:
    return []


# The rows of the page: from, to, what is allowed. A rule has the ports for a peer.
Rule = Callable[[JobSpec, Place], Iterable[int]]
INTO: list[tuple[str, str, str, Rule]] = [
    (RANK, RANK, "every port", every),
    (NEIGHBOUR, RANK, "`metrics.port`", metrics),
    (MONITOR, RANK, "`metrics.port`", metrics),
    (STRANGER, RANK, "nothing", none),
    (NEIGHBOUR, BOARD, "its port", tensorboard),
    (VISITOR, BOARD, "its port", tensorboard),
    (STRANGER, BOARD, "nothing", none),
]
OUT_OF: list[tuple[str, str, str, Rule]] = [
    (RANK, RANK, "every port", every),
    (RANK, DNS, "53", names),
    (
        RANK,
        "anything, with `network.dns: any`",
        "53 and 5353",
        lambda spec, _: [53, 5353] if spec.network.dns == "any" else [],
    ),
    (RANK, "what `network.egress` names", "its ports", egress),
    (
        RANK,
        "`network.fetchFrom`, by default anything",
        "443 with `data.pull`; with `code.git` the port of its address, by default 443 or, for ssh, 22",
        fetch,
    ),
    (BOARD, ANYTHING, "nothing", none),
]


def by_the_page(spec: JobSpec, a: str, b: str, places: Mapping[str, Place]) -> list[int]:
    """Return the ports at which `a` reaches `b` by the rows. Only pods of the job have a policy."""
    sides = [[rule(spec, places[b]) for own, _, _, rule in OUT_OF if own == a]]
    sides += [[rule(spec, places[a]) for _, own, _, rule in INTO if own == b]]
    bound = [set(chain.from_iterable(rules)) for rules in sides if rules]
    return [port for port in PORTS if all(port in ports for ports in bound)]


def places_of(made: Any) -> Iterator[dict[str, Place]]:
    """Yield all places, for each template of the job's pods."""
    places = dict(PLACES)
    for one in made.objects:
        if one["kind"] == "Deployment":
            places[BOARD] = Place(one["spec"]["template"]["metadata"]["labels"])
    for pod in pods(made):
        yield places | {RANK: Place(pod["metadata"]["labels"], rank=True)}


def policies_of(made: Any) -> list[dict[str, Any]]:
    inside = [one["spec"].get("components", []) for one in made.objects if "spec" in one]
    found = [*made.objects, *(one["template"] for one in chain.from_iterable(inside))]
    return [one for one in found if one["kind"] == "NetworkPolicy"]


@pytest.mark.slow
def test_every_golden_is_as_the_page_says() -> None:
    open_pairs = set()
    for where, values, made in goldens.of_clusters():
        spec, policies = validate(values), policies_of(made)
        assert bool(policies) == spec.network.isolate, where
        for places in places_of(made):
            for a, b in product(places, places):
                if spec.network.isolate and {a, b} & {RANK, BOARD}:
                    seen = reaches(policies, places[a], places[b])
                    assert seen == by_the_page(spec, a, b, places), (where, a, b)
                    open_pairs |= {(a, b)} if seen else set()
    expected = {(RANK, one) for one in [RANK, *PLACES]}
    expected |= {(one, RANK) for one in (NEIGHBOUR, MONITOR)}
    expected |= {(one, BOARD) for one in (NEIGHBOUR, VISITOR)}
    assert open_pairs == expected, "some row is in no golden"


def test_the_page_has_these_rows() -> None:
    page = (ROOT / "k8s/SECURITY.md").read_text(encoding="utf-8")
    table = page.split("## Who reaches what\n")[1].split("\n## ")[0]
    shown = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert shown == list(dict.fromkeys(f"| {a} | {b} | {c} |" for a, b, c, _ in INTO + OUT_OF))


def policy(**network: Any) -> list[dict[str, Any]]:
    made = render(
        job(network=network, code={"git": "https://git.example.com/m", "revision": "a" * 40}), "job"
    )
    return [one for one in made.objects if one["kind"] == "NetworkPolicy"]


def test_fetching_from_one_network_alone() -> None:
    policies = policy(fetchFrom=["10.30.0.0/16"])
    (labels,) = [one["spec"]["podSelector"]["matchLabels"] for one in policies]
    own = Place(labels, namespace=OWN)
    assert reaches(policies, own, PLACES["a mirror"]) == [443]
    for one in ("the internet", "its IPv6"):
        assert reaches(policies, own, PLACES[one]) == []


def test_dns_that_is_anywhere() -> None:
    policies = policy(dns="any", fetchFrom=[])
    (labels,) = [one["spec"]["podSelector"]["matchLabels"] for one in policies]
    assert reaches(policies, Place(labels), PLACES[STRANGER]) == [53, 5353]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_without_isolation_there_is_no_policy(launcher: str) -> None:
    values = job(
        network={"isolate": False},
        metrics={"port": 9400},
        tensorboard={},
        checkpoints={"pvc": "runs"},
    )
    assert "NetworkPolicy" not in render(values, launcher).text


@pytest.mark.parametrize("isolate", [True, False])
def test_volcano_makes_no_policy_of_its_own(isolate: bool) -> None:  # noqa: FBT001
    """Its svc plugin's one admits the job's own pods only, so no metrics could be scraped."""
    made = render(job(network={"isolate": isolate}), "volcano").objects[-1]
    assert "--disable-network-policy=true" in made["spec"]["plugins"]["svc"]
