"""The job file's `network`, `metrics` and `tensorboard`.

render.py job.yaml --set metrics.port=9400 --set 'network.egress=[{cidr: 10.0.0.0/8}]'
"""

import contextlib
import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from k8s.base import names
from k8s.base.model import DnsLabel, Image, Model

_Port = Annotated[int, Field(ge=1, le=65535)]
_FROM = "namespaces whose pods may reach the port, besides the job's own, e.g. [monitoring]"


def _cidr(text: str) -> str:
    with contextlib.suppress(ValueError):
        # Python takes an address alone, 10.0.0.0/255.0.0.0 and fe80::%eth0/64 as well; the API does not.
        if ipaddress.ip_network(text) and re.fullmatch(r"[0-9A-Fa-f.:]+/[0-9]+", text):
            return text
    raise ValueError("must be a network, e.g. 10.0.0.0/8, or 203.0.113.7/32 for one host")


class Egress(Model):
    """What the pods may connect to."""

    cidr: Annotated[str, AfterValidator(_cidr)] = Field(
        description="a network, e.g. 10.0.0.0/8; 0.0.0.0/0 is any"
    )
    ports: list[_Port] = Field([], description="TCP ports (default: all)")


def _attachment(text: str) -> str:
    for part in text.split("/", 1):
        names.subdomain(part)
    return text


class Network(Model):
    """What the pods may connect to, if the cluster's network plugin enforces NetworkPolicies."""

    isolate: bool = Field(
        True,
        description="a NetworkPolicy: pods connect only to each other, DNS, `fetchFrom` and `egress`; "
        "others reach only the metrics port",
    )
    dns: Literal["cluster", "any"] = Field(
        "cluster",
        description="DNS that the pods may use: `cluster`, the pods with k8s-app=kube-dns in "
        "kube-system and a cache on the machine; `any`, for a cluster whose DNS is elsewhere",
    )
    fetch_from: list[Annotated[str, AfterValidator(_cidr)]] = Field(
        ["0.0.0.0/0", "::/0"],
        description="networks that `code.git` and `data.pull` may be fetched from (default: any)",
    )
    egress: list[Egress] = Field(
        [], description="what else the pods may connect to, e.g. a data store"
    )
    secondary: list[Annotated[str, AfterValidator(_attachment)]] = Field(
        [],
        description="more network interfaces: names of Multus NetworkAttachmentDefinitions, "
        "[NAMESPACE/]NAME, e.g. one for each RoCE adapter",
    )


_NETWORKS = "k8s.v1.cni.cncf.io/networks"


def annotations(network: Network) -> dict[str, str]:
    """Return the pods' annotations that give them more interfaces."""
    wanted = ",".join(network.secondary)
    return {_NETWORKS: wanted} if wanted else {}


def check_annotations(given: dict[str, str], network: Network) -> None:
    """Refuse an annotation that would take the place of `secondary`. Raises ValueError."""
    if network.secondary and _NETWORKS in given:
        raise ValueError(
            f"annotations.{_NETWORKS}: network.secondary sets it too; leave out one of them"
        )


class Metrics(Model):
    """A port of every pod that Prometheus scrapes."""

    port: _Port = Field(description="the port, e.g. 9400")
    path: str = Field("/metrics", pattern=r"^/[-._~/A-Za-z0-9]*$", description="the path")
    interval: str = Field(
        "30s", pattern=r"^[1-9][0-9]*(ms|s|m|h)$", description="how often to scrape"
    )
    dashboard: bool = Field(
        False, description="a dashboard for Grafana, as a ConfigMap that its sidecar finds"
    )
    alerts: bool = Field(False, description="alerts for Prometheus, as a PrometheusRule")
    from_: list[DnsLabel] = Field(  # `from` is a word of Python's
        [], alias="from", description=_FROM
    )


class TensorBoard(Model):
    """TensorBoard for the run folder: a Deployment and a Service."""

    image: Image | None = Field(
        None, description="an image with `tensorboard` (default: the job's image)"
    )
    port: _Port = Field(6006, description="the Service's port")
    from_: list[DnsLabel] = Field(  # `from` is a word of Python's
        [], alias="from", description=_FROM
    )
