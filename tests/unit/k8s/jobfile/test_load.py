"""Job files as text: merging, --set, and the origin of a value."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.jobfile import load
from tests.conftest import ROOT
from tests.rendering import job, planned, pods, render
from trainer.config.exits import Exit, Fault


def read(folder: Path, *texts: str, sets: tuple[str, ...] = ()) -> load.JobFile:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.yaml"
        path.write_text(text)
        paths.append(str(path))
    return load.read(paths, sets)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ("{a: 1}", "{b: 2}", {"a": 1, "b": 2}),
        ("{a: 1}", "{a: 2}", {"a": 2}),
        ("{a: {b: 1, c: 2}}", "{a: {c: 3}}", {"a": {"b": 1, "c": 3}}),
        ("{a: [1, 2]}", "{a: [3]}", {"a": [3]}),
        ("{a: {b: 1}}", "{a: 2}", {"a": 2}),
        ("{a: 1}", "{a: {b: 2}}", {"a": {"b": 2}}),
        ("{a: {b: 1, c: 2}}", "{a: {b: null}}", {"a": {"c": 2}}),
        ("{a: {b: 1}}", "{a: null}", {}),
        (
            "{podPatch: {spec: {a: 1}}}",
            "{podPatch: {spec: {a: null}}}",
            {"podPatch": {"spec": {"a": None}}},
        ),
        ("{podPatch: {spec: {a: 1}}}", "{podPatch: {spec: null}}", {"podPatch": {}}),
    ],
)
def test_files_merge_left_to_right(tmp_path: Path, first: str, second: str, merged: Any) -> None:
    assert read(tmp_path, first, second).values == merged


@pytest.mark.parametrize(
    ("setting", "merged"),
    [
        ("nodes=4", {"nodes": 4, "env": [{"name": "A"}]}),
        ("a.b.c=x", {"nodes": 2, "env": [{"name": "A"}], "a": {"b": {"c": "x"}}}),
        ("env[0].name=B", {"nodes": 2, "env": [{"name": "B"}]}),
        ("env[1].name=B", {"nodes": 2, "env": [{"name": "A"}, {"name": "B"}]}),
        ("list[0]=1", {"nodes": 2, "env": [{"name": "A"}], "list": [1]}),
        ("env=[]", {"nodes": 2, "env": []}),
        ("nodes=", {"env": [{"name": "A"}]}),
        ("nodes=null", {"env": [{"name": "A"}]}),
        ("nodes=a=b", {"nodes": "a=b", "env": [{"name": "A"}]}),
        ("nodes='4'", {"nodes": "4", "env": [{"name": "A"}]}),
        ("labels[x.io/y]=z", {"nodes": 2, "env": [{"name": "A"}], "labels": {"x.io/y": "z"}}),
    ],
)
def test_set(tmp_path: Path, setting: str, merged: Any) -> None:
    assert read(tmp_path, "{nodes: 2, env: [{name: A}]}", sets=(setting,)).values == merged


def test_the_last_set_wins(tmp_path: Path) -> None:
    assert read(tmp_path, "{a: 1}", sets=("a=2", "a=3")).values == {"a": 3}


def test_origins(tmp_path: Path) -> None:
    job = read(
        tmp_path,
        "{nodes: 2, resources: {gpu: 1, cpu: 1}, env: [{name: A, value: x}]}",
        "{resources: {cpu: 2}}",
        sets=("trainer.lr=0.1",),
    )
    first, second = str(tmp_path / "0.yaml"), str(tmp_path / "1.yaml")
    assert job.origin_of("nodes=2: no") == first
    assert job.origin_of("resources.gpu=1: no") == first
    assert job.origin_of("resources.cpu=2: no") == second
    assert job.origin_of("env[0].value='x': no") == first
    assert job.origin_of("trainer.lr=0.1: no") == "--set"
    assert job.origin_of("image: missing") == second  # no file set it: the last one should have


def test_a_date_is_text(tmp_path: Path) -> None:
    assert read(tmp_path, "{name: 2026-01-01}").values == {"name": "2026-01-01"}


@pytest.mark.parametrize(
    "text", ["3.10", "12:30:00", "0123", "1_000", "0x1F", "1.0e+3", "+5", ".5"]
)
def test_a_number_reaches_the_program_as_it_is_written(tmp_path: Path, text: str) -> None:
    sets = (f"run={{command: [python, {text}], args: [{text}]}}",)
    assert planned(read(tmp_path, yaml.dump(job()), sets=sets).values).program[2:] == (text, text)
    settings = ("trainer.task=a.b:C", f"trainer.taskVersion={text}")
    own = planned(read(tmp_path, yaml.dump(job()), sets=settings).values)
    assert own.container.environment["TRAINER_TASK_VERSION"] == text


def test_a_number_stays_a_number_where_one_is_wanted(tmp_path: Path) -> None:
    volume = "{name: keys, secret: {secretName: keys, defaultMode: 0400}}"
    sets = ("nodes=02", "trainer.steps=10_000", f"podPatch.spec.volumes=[{volume}]")
    rendered = render(read(tmp_path, yaml.dump(job()), sets=sets).values, "job")
    assert rendered.plan.container.environment["TRAINER_STEPS"] == "10000"
    [found] = [one for one in pods(rendered)[0]["spec"]["volumes"] if one["name"] == "keys"]
    assert found["secret"]["defaultMode"] == 0o400


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = "base: &base {cpu: 1, gpu: 2}\nresources: {<<: *base, gpu: 3}\n"
    assert read(tmp_path, text).values["resources"] == {"cpu": 1, "gpu": 3}


def test_an_option_changes_one_place_of_what_an_alias_repeats(tmp_path: Path) -> None:
    text = "volumes: [{ephemeral: &small {size: 1Gi}}, {ephemeral: *small}]"
    found = read(tmp_path, text, sets=("volumes[0].ephemeral.size=2Gi",)).values["volumes"]
    assert found == [{"ephemeral": {"size": "2Gi"}}, {"ephemeral": {"size": "1Gi"}}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b: c", ":1:5: not YAML: mapping values"),
        ("a: 1\nb: 2\na: 3", ":3:1: not YAML: the key 'a' is given twice"),
        ("a: {b: 1, b: 2}", ":1:11: not YAML: the key 'b' is given twice"),
        ("a: 1\nnodes:2\nb: 3", ":2:1: not YAML: a key without ': ' after it"),
        ("a: 1\nb:\n\tc: 3", ":3:1: not YAML: .* indent with spaces, not tabs"),
        ("a: 1\nb: 'c\nd: 3\n", ":2:4: not YAML: a quote that does not end"),
        ("", ": is empty; a job file is a mapping"),
        ("[1]", ": holds a list; a job file is a mapping"),
        ("a: 1\n---\nb: 2", ":2:1: not YAML: a second document starts here"),
        ("a: &x [*x]", ": nested too deeply, or refers to itself"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply|maximum nesting"),  # by libyaml
        ("a: " + "[" * 100_000, "nested too deeply|maximum nesting"),  # else the parser crashes
        ("1: x", ": 1: the key must be text"),
        ('a: [{b: "x\\0"}]', r"a\[0\].b='x\\x00': contains NUL or a lone surrogate"),
        ('a: "\\ud800"', "not YAML|contains NUL"),
        ("a: !!binary aGk=", ": a: binary data is not supported"),
        ("a: !!python/name:os.system x", ":1:4: not YAML: could not determine a constructor"),
        ("{[a]: 1}", ":1:2: not YAML"),
        ("a: 0x_", ":1:4: not YAML: '0x_' is not a valid int"),
        ("a: !!int b", ":1:4: not YAML: 'b' is not a valid int"),
        ("a: !!int ''", ":1:4: not YAML: '' is not a valid int"),
        ("a: !!bool maybe", ":1:4: not YAML: 'maybe' is not a valid bool"),
        ("a: !!timestamp now", ":1:4: not YAML: 'now' is not a valid timestamp"),
        ("a: " + "1" * 5000, ":1:4: not YAML: '1111.*' is not a valid int"),
    ],
)
def test_what_no_job_file_is(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        read(tmp_path, text)
    assert caught.value.code == Exit.CONFIG
    assert "0.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nodes", "must be KEY=VALUE"),
        ("=1", "must be KEY=VALUE"),
        ("a..b=1", "must be KEY=VALUE"),
        ("[0]=1", "must be KEY=VALUE"),
        ("env[2].name=x", r"--set env\[2\].name: the list has 0 items; \[0\] adds one"),
        ("env.name=x", "name would be in a list; write .NUMBER. before it"),
        ("nodes.min=1", "--set nodes.min: min cannot be set, because 2 is not a mapping"),
        ("image=a: b: c", "--set image:1:5: not YAML"),
    ],
)
def test_what_no_setting_is(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(Fault, match=words):
        read(tmp_path, "{nodes: 2, env: []}", sets=(setting,))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="No such file"):
        load.read([str(tmp_path / "none.yaml")])
    with pytest.raises(Fault, match="directory"):
        load.read([str(tmp_path)])
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(Fault, match="not UTF-8 at byte 6"):
        load.read([str(tmp_path / "latin.yaml")])


def test_plain_yaml_reads_as_pyyaml_reads_it(tmp_path: Path) -> None:
    text = (ROOT / "k8s" / "jobs" / "03-digits-gpu.yaml").read_text()
    assert read(tmp_path, text).values == yaml.safe_load(text)
