"""An answer of the API with wrong types ends a verb with one line, not with an exception."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8s.cluster.client.shape import checked
from tests.cluster_objects import FAILED, RUNNING, Cluster, Run, fill
from tests.standin.server import Server
from trainer.config.exits import Exit, Fault

Place = tuple[str | int, ...]
END = {"exitCode": 1}
WRONG = st.sampled_from([None, [], {}, "x", 0, -1, 1e308, True, [None], {"a": None}, "9" * 5000])


def places(value: Any, above: Place = ()) -> list[Place]:
    """Return the path of each value in a JSON document, except the root."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[Place] = []
    for key, inside in items:
        found.append((*above, key))
        if isinstance(inside, dict | list):
            found += places(inside, (*above, key))
    return found


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, Any]:
    """Draw an object or a list of a cluster, with some values replaced, and the end of its path."""
    server = Server()
    fill(server, **FAILED)
    path, found = draw(st.sampled_from(sorted(server.objects.items())))
    plural, name = path.rsplit("/", 2)[1:]
    listed = draw(st.booleans())
    answer: Any = {"items": [found], "metadata": {}} if listed else found
    answer = json.loads(json.dumps(answer))
    for _ in range(draw(st.integers(1, 2))):
        *above, last = draw(st.sampled_from(places(answer)))
        inside = answer
        for key in above:
            inside = inside[key]
        inside[last] = deepcopy(draw(WRONG))  # the next one may change what is inside it
    return f"/{plural}?" if listed else f"/{plural}/{name}", answer


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(found=damaged())
def test_a_verb_ends_with_a_code(found: tuple[str, Any], run: Run, cluster: Cluster) -> None:
    server, config = cluster
    server.answer = lambda _, __: None
    fill(server, **FAILED)
    place, answer = found
    server.answer = lambda _, target: (200, {}, json.dumps(answer)) if place in target else None
    for verb in (["list"], ["status", "digits"], ["wait", "digits", "--timeout", "0.1"]):
        code, _, err = run(config, "--timeout", "0.1", *verb)
        assert code in (0, 64, 65, 69, 70, 143), err
        assert "Traceback" not in err


def test_the_field_and_what_came_are_named() -> None:
    answer = {"items": [{"metadata": {"name": "a", "labels": {"b": 5}}}]}
    with pytest.raises(Fault) as caught:
        checked(answer, where="GET /pods", one=False)
    assert caught.value.code == Exit.PEER
    assert str(caught.value) == (
        "GET /pods was answered with another type: items.0.metadata.labels.b: input should be a "
        "valid string, not 5"
    )


@pytest.mark.parametrize("name", ["../../x", "/x", "x\0"])
@pytest.mark.parametrize(
    "found",
    [
        lambda name: {"metadata": {"name": name}},
        lambda name: {"metadata": {"name": "a"}, "spec": {"containers": [{"name": name}]}},
        lambda name: {"metadata": {"name": "a"}, "spec": {"initContainers": [{"name": name}]}},
    ],
    ids=["pod", "container", "init container"],
)
def test_a_name_is_no_path(found: Callable[[str], Any], name: str) -> None:
    """`logs --save` and `report` write files of these names."""
    with pytest.raises(Fault, match="name: string should match pattern"):
        checked(found(name), where="GET /pods", one=True)


@pytest.mark.parametrize(
    "found",
    [
        {"spec": {"containers": [{"command": 5}]}},
        {"status": {"containerStatuses": [{"state": {"running": "x"}}]}},
        {"status": {"containerStatuses": [{"state": {"running": {"startedAt": 5}}}]}},
        {"status": {"containerStatuses": [{"state": {"terminated": {**END, "startedAt": 5}}}]}},
        {"status": {"replicaStatuses": {"Worker": {"failed": "x"}}}},
        {"count": "x"},
    ],
    ids=["profile", "report", "time of start", "start of what ended", "PyTorchJob", "event"],
)
def test_what_verbs_read_has_its_type(found: Any) -> None:
    """Without the check, `profile`, `report`, `list` and `logs --save` would end with a traceback."""
    with pytest.raises(Fault, match="GET /a was answered with another type"):
        checked({"metadata": {"name": "a"}} | found, where="GET /a", one=True)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("MODIFIED", {"metadata": {"name": "digits", "labels": 5}}),
        ("ADDED", [1]),
        ("ADDED", None),
        ("BOOKMARK", {"metadata": "none"}),
        ("DELETED", {"metadata": {"resourceVersion": 5}}),
    ],
)
def test_a_watch_is_checked_too(kind: str, found: Any, run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    line = json.dumps({"type": kind, "object": found}) + "\n"
    server.answer = lambda _, target: (200, {}, line) if "watch=true" in target else None
    code, _, err = run(config, "--timeout", "0.3", "wait", "digits", "--timeout", "20")
    assert (code, "Traceback" in err) == (69, False), err
    assert "watch of" in err


@pytest.mark.parametrize("depth", [600, 900, 100_000])
def test_deep_nesting_is_no_answer(depth: int, run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **FAILED)
    deep = '{"items": ' + "[" * depth + "]" * depth + "}"
    server.answer = lambda _, target: (200, {}, deep) if "/jobsets" in target else None
    code, _, err = run(config, "--timeout", "0.3", "list")
    assert (code, "Traceback" in err) == (69, False), err


def test_nulls_are_left_out() -> None:
    answer = {"metadata": {"name": "a", "labels": None}, "spec": {"other": [{"b": None}]}}
    assert checked(answer, where="", one=True) == {
        "metadata": {"name": "a"},
        "spec": {"other": [{}]},
    }
