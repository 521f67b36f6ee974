"""Every accepted job file renders, parses and keeps the user's values."""

import itertools
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8s import launchers
from k8s.jobfile import load, validate
from k8s.render import manifests
from tests.rendering import (
    AWKWARD,
    EVERYTHING,
    environment_in_pod,
    environment_in_script,
    everything,
    expand,
    pods,
)
from trainer.config.exits import Fault

TEXT = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)
NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)
VARIABLE = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
KEY = st.from_regex(
    r"([a-z]{1,8}\.[a-z]{1,4}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,20}[A-Za-z0-9])?", fullmatch=True
)
LABEL = st.from_regex(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
SIZE = st.builds(
    str.__add__, st.integers(1, 999).map(str), st.sampled_from(["Mi", "Gi", "M", "G", "e9"])
)
# Fields of a pod, some with wrong values.
PATCH = st.dictionaries(
    st.sampled_from(
        ["hostNetwork", "tolerations", "volumes", "containers", "securityContext", "x"]
    ),
    st.one_of(
        st.booleans(),
        st.none(),
        st.just({"$patch": "replace"}),
        st.lists(
            st.fixed_dictionaries(
                {}, optional={"name": st.sampled_from(["trainer", "out", "new"]), "x": TEXT}
            ),
            max_size=2,
        ),
    ),
    max_size=2,
)


VOLUME: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"name": "a", "path": "/a", "pvc": "c"},
        {"name": "b", "path": "/b", "claim": {"size": "1Gi"}, "readOnly": True},
        {"name": "c", "path": "/c", "claim": {"size": "1Gi", "accessMode": "ReadWriteOnce"}},
        {"name": "d", "path": "/d", "ephemeral": {"size": "1Gi", "storageClass": "x"}},
        {"name": "e", "path": "/e", "secret": "s", "subPath": "k"},
        {"name": "f", "path": "/out", "configMap": "s"},
    ]
)


@st.composite
def job_files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw job files: most are accepted, some not (a long name, a memory that shm fills)."""
    nodes: Any = draw(st.integers(1, 60) | st.integers(1, 600))
    gpu = draw(st.sampled_from([0, 0, 1, 4, 8]))
    procs = draw(st.integers(1, gpu or 4))
    names = draw(st.lists(VARIABLE, unique=True, max_size=4))
    optional = {
        "namespace": NAME,
        "annotations": st.dictionaries(KEY, TEXT, max_size=3),
        "labels": st.dictionaries(KEY, LABEL, max_size=3),
        "data": st.sampled_from([{"pvc": "data.set"}, {"hostPath": "/mnt/data"}]),
        "checkpoints": st.sampled_from([{"pvc": "c"}, {"hostPath": "/c d"}, {"emptyDir": "1Gi"}]),
        "scheduling": st.fixed_dictionaries(
            {},
            optional={
                "queue": st.just("q"),
                "gang": st.booleans(),
                "gangTimeout": st.just(60),
                "spread": st.just("host"),
                "pack": st.just("zone"),
                "nodeSelector": st.dictionaries(KEY, LABEL, max_size=2),
                "hostIgnoreList": st.just(["a", "b"]),
                "exclusiveTopology": st.just("rack"),
            },
        ),
        "envFrom": st.just([{"secretRef": {"name": "a"}}]),
        "serviceAccount": st.just("a.b"),
        "imagePullPolicy": st.sampled_from(["Always", "Never"]),
        "podPatch": st.fixed_dictionaries(
            {}, optional={"metadata": st.just({"annotations": {"a": "b"}}), "spec": PATCH}
        ),
        "faults": st.fixed_dictionaries(
            {"gracePeriod": st.integers(1, 600), "ttl": st.integers(0, 9)}
        ),
        "nccl": st.fixed_dictionaries(
            {},
            optional={
                "presets": st.lists(st.sampled_from(["tcp", "efa", "debug"]), max_size=2),
                "topology": st.just({"configMap": "t"}),
                "flightRecorder": st.booleans(),
                "variables": st.dictionaries(st.just("NCCL_ALGO"), TEXT, max_size=1),
            },
        ),
        "code": st.sampled_from(
            [
                {"git": "https://h/a", "revision": "v1", "path": "src"},
                {"git": "git@h:a/b", "revision": "0" * 40, "secret": "k"},
            ]
        ),
        "setup": st.lists(TEXT.filter(bool), min_size=1, max_size=2),
        "volumes": st.lists(VOLUME, unique_by=lambda one: one["name"], max_size=3),
        "mountJobFile": st.booleans(),
        "network": st.sampled_from(
            [
                {"isolate": False},
                {"egress": [{"cidr": "10.0.0.0/8", "ports": [1]}], "secondary": ["a", "b/c"]},
            ]
        ),
        "metrics": st.just({"port": 9}),
        "tensorboard": st.just({}),
        "disruptionBudget": st.booleans(),
        "appWrapper": st.booleans(),
    }
    return {
        "name": draw(NAME),
        "image": draw(st.sampled_from(["a", "muster:cpu", "r.example:5000/a/b_c:1.0"])),
        "nodes": {"min": nodes, "max": nodes} if draw(st.booleans()) else nodes,
        "procsPerNode": procs,
        "resources": {"gpu": gpu}
        | draw(
            st.fixed_dictionaries({}, optional={"memory": SIZE, "shm": SIZE, "cpu": st.just("2")})
        ),
        "trainer": {"globalBatch": nodes * procs * draw(st.integers(1, 9))},
        "env": [{"name": name, "value": draw(TEXT)} for name in names],
        **draw(st.fixed_dictionaries({}, optional=optional)),
    }


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(values=job_files(), launcher=st.sampled_from(launchers.known()))
def test_accepted_renders_and_parses(values: dict[str, Any], launcher: str) -> None:
    try:
        rendered = rendering(values, launcher)
    except Fault as fault:
        line = str(fault)
        rendered = None
    if rendered is None:
        assert "\n" not in line
        assert re.split(r"[=:.\[]", line)[0] in values
        return
    assert rendering(values, launcher).text == rendered.text
    if rendered.objects:
        assert tuple(yaml.load_all(rendered.text, yaml.CSafeLoader)) == rendered.objects
    wanted = {one["name"]: one["value"] for one in values["env"]}
    for one in rendered.objects:
        assert len(one["metadata"]["name"]) <= 63
        own = one["metadata"].get("annotations", {})
        assert values.get("annotations", {}).items() <= own.items()
        assert values.get("labels", {}).items() <= one["metadata"]["labels"].items()
    for pod in pods(rendered):
        seen = environment_in_pod(pod)
        assert {name: seen[name] for name in wanted} == wanted
        for step in pod["spec"].get("initContainers", []):
            if step["name"] == "setup":
                script = expand(step["command"][2], {})
                assert script == "\n".join(["set -euo pipefail", "cd /code", *values["setup"], ""])


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXT)
def test_a_shell_hands_on_what_was_written(text: str, tmp_path_factory: Any) -> None:
    values = {"name": "a", "image": "b", "env": [{"name": "VALUE", "value": text}]}
    for launcher in ("local", "docker"):
        folder = tmp_path_factory.mktemp("shell")
        assert environment_in_script(values, launcher, folder)["VALUE"] == text


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key and item in `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*at, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*at, key))


@cache
def edits() -> list[tuple[str, dict[str, Any]]]:
    """Edit every key of the job file with all keys: remove it, or give it a wrong value.

    Files that the model refuses, before any launcher, are checked here; the others are returned.
    """
    whole = everything("jobset") | {"faults": load.read([str(EVERYTHING)]).values["faults"]}
    accepted, refused = [], 0
    other = itertools.cycle(["x y", 7, True, [1], {"zz": 1}])
    for path in places(whole):
        for edit in ("absent", None, next(other), next(other)):
            values = deepcopy(whole)
            holder: Any = values
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = edit
            if edit == "absent":
                del holder[path[-1]]
            case = f"{path}: {edit!r}"
            try:
                validate.validate(values)
            except Fault as fault:
                refused += 1
                assert_by_name(fault, case)
            else:
                accepted.append((case, values))
    assert refused > 100
    assert len(accepted) > 100
    return accepted


def assert_by_name(fault: Fault, case: str) -> None:
    line = str(fault)
    assert "\n" not in line
    assert re.split(r"[=:.\[]", line)[0] in load.read([str(EVERYTHING)]).values, (case, line)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", launchers.known())
def test_any_edit_of_one_key_renders_or_is_refused_by_name(launcher: str) -> None:
    lacks = [key.split(".") for key in launchers.find(launcher).lacks]
    rendered = 0
    for case, whole in edits():
        values = deepcopy(whole)
        for *above, last in lacks:
            holder = values
            for part in above:
                holder = holder.get(part) or {}
            if isinstance(holder, dict):
                holder.pop(last, None)
        try:
            rendering(values, launcher)
        except Fault as fault:
            assert_by_name(fault, case)
        else:
            rendered += 1
    assert rendered > 100


def rendering(values: dict[str, Any], launcher: str) -> manifests.Rendered:
    found = launchers.find(launcher)
    rendered = manifests.render(validate.validate(values), found)
    assert len(rendered.plan.rendezvous.longest_host) <= 63
    return rendered
