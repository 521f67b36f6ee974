"""YAML of strangers is refused within limits of memory and time, whatever its aliases repeat."""

from functools import partial
from pathlib import Path

import pytest

from k8s.base.yaml_text import dump, read, read_text
from k8s.cli.migrate import print_migrated
from k8s.jobfile import load
from tests.bounds import bounded


def laughs(levels: int, width: int) -> str:
    """Return nested lists of aliases, which stand for width ** levels values."""
    lines = ["a0: &a0 [" + ",".join(["x"] * width) + "]"]
    lines += (
        f"a{level}: &a{level} [" + ",".join([f"*a{level - 1}"] * width) + "]"
        for level in range(1, levels)
    )
    return "\n".join(lines)


def merges(levels: int, width: int) -> str:
    lines = ["a0: &a0 {" + ",".join(f"k{n}: x" for n in range(width)) + "}"]
    lines += (
        f"a{level}: &a{level} {{<<: [" + ",".join([f"*a{level - 1}"] * width) + "]}"
        for level in range(1, levels)
    )
    return "\n".join(lines)


HOSTILE = {
    "aliases": laughs(9, 9),
    "merge keys": merges(7, 20),
    "a long list": "a: [" + "1," * 2_500_000 + "]",
    "many keys": "\n".join(f"k{n}: 1" for n in range(300_000)),
    "a large file": "a: " + "x" * (17 << 20),
    "a cycle": "a: &a {b: [*a]}",
    "a cycle in a key": "? &a [*a]\n: 1",
    "a cycle through a merge": "a: &a {<<: *a}",
    "deep": "a: " + "[" * 300 + "]" * 300,
    "deep, in few characters": "[" * 1_000_000,
    "an alias of nothing": "a: *b",
    "a key twice": "a: 1\nb: {c: 1, c: 2}",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_job_file_is_refused_in_bounds(what: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HOSTILE[what])
    answer = bounded(partial(load.read, [str(file)]))
    assert answer.startswith(f"64: {file}")
    assert len(answer) < 500


@pytest.mark.parametrize("what", HOSTILE)
def test_a_manifest_to_migrate_is_refused_in_bounds(what: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    kind = "apiVersion: batch/v1\nkind: Job\n"
    file.write_text(HOSTILE[what] if HOSTILE[what][0] in "?[" else kind + HOSTILE[what])
    assert bounded(partial(print_migrated, file)).startswith(f"64: --migrate {file}")


def test_a_variable_to_migrate_is_no_way_around(tmp_path: Path) -> None:
    pod = {
        "containers": [
            {"name": "a", "image": "b", "env": [{"name": "TRAINER_LR", "value": laughs(9, 9)}]}
        ]
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
    file = tmp_path / "job.yaml"
    file.write_text(dump([job | {"spec": {"template": {"spec": pod}}}]))
    answer = bounded(partial(print_migrated, file))
    assert answer.startswith("64: env TRAINER_LR")
    assert "more than 200,000 values" in answer


def test_an_endless_file_is_not_read_to_its_end() -> None:
    answer = bounded(partial(read_text, Path("/dev/zero"), label="job.yaml"))
    assert answer == "64: job.yaml: more than 16 MiB"


def test_aliases_that_repeat_little_work() -> None:
    (found,) = read(laughs(3, 3), label="x")
    assert found["a2"] == [[["x"] * 3] * 3] * 3
    (merged,) = read("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", label="x")
    assert merged["b"] == {"x": 1, "y": 3}


def test_an_anchor_is_of_its_document() -> None:
    assert len(read("a: &a [1]\n---\nb: &a [2, 3]\n", label="x")) == 2
