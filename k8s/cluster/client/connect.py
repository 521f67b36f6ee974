"""Connect to a cluster and a namespace: with a kubeconfig's context, or from a pod in the cluster.

cluster = connect(context=None, namespace="research")
"""

import os
from pathlib import Path

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException

from k8s.base.errors import config_error, in_one_line
from k8s.base.yaml_text import read, read_text
from k8s.cluster.client.api import Cluster, tokens_of

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect(*, context: str | None, namespace: str | None, timeout: float = 30.0) -> Cluster:
    """Connect with the kubeconfig's context or, if there is no kubeconfig, from a pod in the cluster.

    Raises Fault(64) if neither is possible, or if no namespace is given.
    """
    configuration = client.Configuration()
    _check_files()
    try:
        config.load_kube_config(context=context, client_configuration=configuration)
        # Not list_kube_config_contexts(): it fails if the kubeconfig has no current context.
        merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
        chosen = kube_config.KubeConfigLoader(merged, active_context=context).current_context
        where, own = f"context {chosen['name']}", chosen["context"].get("namespace")
    except ConfigException as error:
        if context is not None:
            raise config_error(f"--context {context}: {in_one_line(error)}") from None
        try:
            config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            raise config_error(
                f"no cluster: {in_one_line(error)}; set KUBECONFIG, or run in a pod"
            ) from None
        where, own = "this pod's cluster", _namespace_of_this_pod()
    except (yaml.YAMLError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        # What the client raises for a file that is not a kubeconfig.
        raise config_error(f"the kubeconfig cannot be read: {in_one_line(error)}") from None
    found = namespace or own
    if not found:
        raise config_error(f"{where} names no namespace; add --namespace NAME")
    if not isinstance(found, str):
        raise config_error(f"{where}: its namespace {found!r} is not text; put it in quotes")
    tokens = "".join(tokens_of(configuration).values())
    if not (tokens.isascii() and tokens.isprintable()):
        raise config_error(f"{where}: its token has a character that an HTTP header cannot have")
    if not configuration.verify_ssl:  # as the kubeconfig asks; urllib3 would warn at every request
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    configuration.retries = False  # api.py has its own, bounded by the timeout
    return Cluster(client.ApiClient(configuration), found, f"{where}, namespace {found}", timeout)


def _check_files() -> None:
    """Refuse a kubeconfig that is not YAML or would take long to read. Raises Fault(64)."""
    for name in kube_config.KUBE_CONFIG_DEFAULT_LOCATION.split(os.pathsep):
        path = Path(name).expanduser()
        if name and path.exists():
            read(read_text(path, label=str(path)), label=str(path))


def _namespace_of_this_pod() -> str | None:
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        return None
