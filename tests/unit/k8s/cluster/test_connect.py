"""Which cluster the verbs use: that of a kubeconfig, or of the pod they run in; nothing is guessed."""

import ssl
import time
import warnings
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import urllib3
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from k8s.cluster.client.api import Forbidden, call
from k8s.cluster.client.connect import connect
from tests.cluster_objects import RUNNING, Cluster, Run, connection, fill
from tests.conftest import wait_for
from tests.standin.http import kubeconfig, serving
from tests.standin.server import Server
from trainer.config.exits import Fault


@pytest.mark.parametrize("verb", [["list"], ["status", "digits"], ["status", "none"]])
def test_a_verb_leaves_no_socket_open(verb: list[str], run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    open_files = Path("/proc/self/fd")
    before = len([*open_files.iterdir()])
    run(config, *verb)
    assert server.requests
    # The server's sockets are in this process too.
    wait_for(lambda: len([*open_files.iterdir()]) <= before, seconds=10)


def test_no_namespace_is_guessed(run: Run, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1", namespace=None)
    code, _, err = run(config, "list")
    assert code == 64
    assert "context test names no namespace; add --namespace NAME" in err
    config = kubeconfig(tmp_path, "http://127.0.0.1:1", namespace="123")
    config.write_text(config.read_text().replace('"123"', "123"))
    code, _, err = run(config, "list")
    assert code == 64
    assert "context test: its namespace 123 is not text; put it in quotes" in err


@pytest.mark.parametrize("current", [{}, {"current-context": "deleted"}])
def test_a_context_that_is_named_needs_no_current_one(
    current: dict[str, str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    del values["current-context"]
    config.write_text(yaml.safe_dump(values | current), encoding="utf-8")
    code, _, err = run(config, "--context", "test", "status", "digits")
    assert (code, "context test, namespace lab" in err) == (0, True), err


def test_a_pod_of_the_cluster_needs_no_kubeconfig(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pod has: files with token, namespace and CA; the address in its environment."""
    server, _ = cluster
    for name, words in (("namespace", "lab\n"), ("token", "t"), ("ca.crt", "x")):
        (tmp_path / name).write_text(words)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    loader = "kubernetes.config.incluster_config.SERVICE_"
    monkeypatch.setattr(f"{loader}TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr("k8s.cluster.client.connect._SERVICE_ACCOUNT", tmp_path)
    nowhere = str(tmp_path / "none")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", nowhere)
    found = connect(context=None, namespace=None)
    assert (found.namespace, found.where) == ("lab", "this pod's cluster, namespace lab")
    assert found.client.configuration.host == f"https://127.0.0.1:{server.port}"
    (tmp_path / "namespace").unlink()
    with pytest.raises(Fault, match="names no namespace"):
        connect(context=None, namespace=None)


@pytest.mark.parametrize(
    "text", ["x: [", "only words", "[]", "\0", "current-context: a\ncontexts: [{name: a}]\n", "{}"]
)
def test_what_is_no_kubeconfig_is_one_line_and_64(text: str, run: Run, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(text)
    code, out, err = run(config, "list")
    assert (code, out) == (64, "")
    assert len(err.splitlines()) == 1, err
    assert "kubeconfig" in err or "kube-config" in err


@pytest.mark.parametrize("token", ["ab\U0001f642c", "ab\r\nX-Other: c"])
def test_a_token_that_no_header_can_hold_is_refused(token: str, run: Run, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values["users"][0]["user"]["token"] = token
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    code, out, err = run(config, "list")
    assert (code, out) == (64, "")
    assert len(err.splitlines()) == 1, err
    assert "context test: its token has a character that an HTTP header cannot have" in err


def test_a_renewed_token_is_used_and_a_wrong_one_is_named(cluster: Cluster) -> None:
    _, config = cluster
    found = connection(config, timeout=5)
    call(found, "GET", "/api/v1")
    found.client.configuration.refresh_api_key_hook = lambda made: made.api_key.update(
        dict.fromkeys(made.api_key, "Bearer another")
    )
    with pytest.raises(Forbidden, match="not allowed: .* 401: Unauthorized"):
        call(found, "GET", "/api/v1")


def test_a_certificate_that_is_not_trusted_is_64_at_once(run: Run, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = made.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
    )
    certificate = made.sign(key, SHA256()).public_bytes(Encoding.PEM)
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "pem").write_bytes(certificate + key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    with serving(Server(), tmp_path, tls=context) as config:
        began = time.monotonic()
        code, _, err = run(config, "list")
        assert (code, "certificate verify failed" in err) == (64, True), err
        assert "check the cluster's certificate-authority" in err
        assert time.monotonic() - began < 10
        values = yaml.safe_load(config.read_text(encoding="utf-8"))
        values["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "pem")
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        assert run(config, "list")[0] == 0


@pytest.mark.parametrize("checked", [True, False])
def test_a_certificate_that_is_not_to_be_checked_is_not_warned_of_at_every_request(
    *, checked: bool, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path, "https://127.0.0.1:1")
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = not checked
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        connect(context=None, namespace=None)
        warnings.warn("unverified", urllib3.exceptions.InsecureRequestWarning, stacklevel=1)
    assert bool(caught) == checked
