"""Variables whose value is elsewhere, and literal values that should be elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from k8s.cli import command
from tests.rendering import CLUSTER, EXAMPLE, job, planned, pods, render, run_script

SECRET = {"secretKeyRef": {"name": "a", "key": "b"}}
MAYBE = {"configMapKeyRef": {"name": "a", "key": "b", "optional": True}}
FIELD = {"fieldRef": {"fieldPath": "metadata.labels['a.io/b']"}}


def referring(**sources: Any) -> dict[str, Any]:
    return job(env=[{"name": name, "valueFrom": source} for name, source in sources.items()])


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_cluster_looks_a_value_up(launcher: str) -> None:
    values = referring(A=SECRET, B=MAYBE, C=FIELD)
    source = [{"prefix": "S3_", "secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}]
    for pod in pods(render({**values, "envFrom": source}, launcher)):
        container = pod["spec"]["containers"][0]
        seen = {one["name"]: one.get("valueFrom") for one in container["env"]}
        assert {"A": SECRET, "B": MAYBE, "C": FIELD}.items() <= seen.items()
        assert container["envFrom"] == source
    assert all("envFrom" not in p["spec"]["containers"][0] for p in pods(render(job(), launcher)))


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_variable_is_set_once(launcher: str) -> None:
    """The API keeps the last of two, and some controllers the first."""
    values = referring(OMP_NUM_THREADS=SECRET, HOME=FIELD)
    for pod in pods(render({**values, "resources": {"cpu": 4}}, launcher)):
        names = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_a_machine_asks_its_caller(launcher: str, tmp_path: Path) -> None:
    text = render(referring(OWN=SECRET, ELSE=MAYBE, NODE=FIELD), launcher).text
    for given in ({}, {"OWN": "x"}, {"NODE": "n"}):
        code, seen, errors = run_script(text, tmp_path, **given)
        assert (code, seen) == (64, None)
        assert f"set and export {'NODE' if given.get('OWN') else 'OWN'}; on a cluster" in errors
    code, seen, errors = run_script(text, tmp_path, OWN="", NODE="it's $x")
    assert code == 0, errors
    if launcher == "docker":
        at = [index for index, one in enumerate(seen["arguments"]) if one == "--env"]
        assert {"OWN", "ELSE", "NODE"} <= {seen["arguments"][index + 1] for index in at}
    assert seen["environment"]["NODE"] == "it's $x"
    assert "ELSE" not in seen["environment"]


CREDENTIALS = [
    ("DB_PASSWORD", "x"),
    ("client_secret", "y"),
    ("HF_TOKEN", "abcdefghijklmnopqrstuvwxyz"),
    ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
    ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("X", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("X", "hf_" + "a" * 20),
    ("X", "-----BEGIN RSA PRIVATE KEY-----\nMII"),
    ("PROXY", "http://me:word@proxy.example:3128"),
]
NO_CREDENTIALS = [
    ("TOKENIZERS_PARALLELISM", "false"),
    ("MAX_TOKENS", "100000000000000000000"),
    ("PAD_TOKEN", "<pad>"),
    ("DB_PASSWORD", ""),
    ("AWS_SECRET_NAME", "team-bucket-credentials"),
    ("PROXY", "http://proxy.example:3128"),
    ("GIT", "ssh://git@example.com:22/x@y"),
    ("TIME", "12:30:00"),
]


@pytest.mark.parametrize(("name", "value"), CREDENTIALS)
def test_a_literal_that_looks_like_a_credential_is_refused_and_not_shown(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "job.yaml"
    written.write_text(EXAMPLE.read_text() + f"\nenv: [{{name: {name}, value: {value!r}}}]\n")
    assert command.main([str(written)]) == 64
    line = capsys.readouterr().err
    assert f"job.yaml: env[0].name='{name}': its value looks like a credential" in line
    assert "set env[0].valueFrom.secretKeyRef" in line
    assert value not in line.replace(name, "").replace("job.yaml", "") or len(value) == 1


@pytest.mark.parametrize(("name", "value"), NO_CREDENTIALS)
def test_a_literal_that_is_no_credential_is_kept(name: str, value: str) -> None:
    assert planned(job(env=[{"name": name, "value": value}])).container.environment[name] == value


@pytest.mark.parametrize("launcher", CLUSTER)
def test_how_an_image_is_pulled(launcher: str) -> None:
    asked = {"imagePullPolicy": "Always", "imagePullSecrets": ["a", "b"]}
    for pod in pods(render(job(**asked), launcher)):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
        assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    for pod in pods(render(job(), launcher)):
        assert "imagePullSecrets" not in pod["spec"]
        assert "imagePullPolicy" not in pod["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("policy", "word"), [("Always", "always"), ("IfNotPresent", "missing"), ("Never", "never")]
)
def test_how_docker_pulls(policy: str, word: str, tmp_path: Path) -> None:
    text = render(job(imagePullPolicy=policy), "docker").text
    arguments = run_script(text, tmp_path)[1]["arguments"]
    assert arguments[arguments.index("--pull") + 1] == word
