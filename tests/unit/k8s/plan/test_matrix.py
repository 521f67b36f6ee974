"""A matrix: its jobs, their names, its refusals, and the renderings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from k8s.cli import command
from k8s.cli.schema import json_schema
from k8s.jobfile import load
from k8s.plan import matrix
from tests.rendering import CLUSTER, LAUNCHERS, ROOT, refused, without

EXAMPLE = ROOT / "k8s" / "jobs" / "16-matrix.yaml"
NAMES = [f"sweep-lr0-{lr}-seed{seed}" for lr in ("01", "03", "1") for seed in (0, 1)][:-1]


def cells(*settings: str) -> list[matrix.Cell]:
    return matrix.cells(load.read([str(EXAMPLE)], settings))


def test_a_job_for_each_combination_but_those_left_out() -> None:
    found = cells()
    assert [cell.job.values["name"] for cell in found] == NAMES
    trainers = [cell.job.values["trainer"] for cell in found]
    assert [(one["lr"], one["seed"]) for one in trainers] == [
        (lr, seed) for lr in (0.01, 0.03, 0.1) for seed in (0, 1) if (lr, seed) != (0.1, 1)
    ]
    assert {one["task"] for one in trainers} == {"digits"}
    assert not any("matrix" in cell.job.values for cell in found)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (["matrix="], ["sweep"]),
        (["matrix[trainer.lr]=", "matrix.exclude="], ["sweep-seed0", "sweep-seed1"]),
        (["matrix={trainer.compile: [true, null]}"], ["sweep-compiletrue", "sweep-compilenull"]),
        (["matrix={trainer.mesh: ['pp=2,tp=2']}"], ["sweep-meshpp-2-tp-2"]),
        (["matrix={trainer.lr: [1, -1]}"], ["sweep-lr1", "sweep-lr-1"]),
        # Both ends are `min`, so each name has one more key.
        (["matrix={nodes.min: [1], a.min: [2]}"], ["sweep-a-min2-nodes-min1"]),
        (
            ["matrix={trainer.task: [A.b, a.B]}"],
            ["sweep-taska-b-837b28d9", "sweep-taska-b-bfd911b4"],
        ),
    ],
)
def test_names(settings: list[str], names: list[str]) -> None:
    found = cells("nodes=", *settings)
    assert [cell.job.values["name"] for cell in found] == names


_KEYS = st.sampled_from(
    ["trainer.lr", "trainer.seed", "nodes", "nodes.min", "a.b.min", "env[0].value", "env[1].value"]
)
_SCALARS = (
    st.none() | st.booleans() | st.integers(-999, 999) | st.floats(allow_nan=False) | st.text()
)
_VALUES = (
    _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(st.text(), _SCALARS, max_size=2)
)
_LISTS = st.lists(_VALUES, min_size=1, max_size=4, unique_by=json.dumps)
_MATRICES = st.dictionaries(_KEYS, _LISTS, min_size=1, max_size=3)
_BASES = st.from_regex(r"\A[a-z]([-a-z0-9]{0,48}[a-z0-9])?\Z")


def named(base: str, lists: dict[str, list[Any]]) -> dict[str, str]:
    """Return the name of each combination by its values."""
    made: list[dict[str, Any]] = [{}]
    for key, values in lists.items():
        made = [cell | {key: value} for cell in made for value in values]
    found = matrix.names(base, made)
    assert len(found) == len(made)
    return {json.dumps(cell, sort_keys=True): name for cell, name in zip(made, found, strict=True)}


@given(base=_BASES, lists=_MATRICES, random=st.randoms(use_true_random=False))
def test_names_are_valid_one_for_each_job_and_do_not_depend_on_the_order(
    base: str, lists: dict[str, list[Any]], random: Any
) -> None:
    found = named(base, lists)
    assert len({*found.values()}) == len(found)
    for name in found.values():
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert name.startswith(base)
        assert len(name) <= max(40, len(base) + 9)
    keys = random.sample(sorted(lists), len(lists))
    assert named(base, {key: random.sample(lists[key], len(lists[key])) for key in keys}) == found


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_longest_name_fits_every_launcher(launcher: str, tmp_path: Path) -> None:
    values = load.read([str(EXAMPLE)], without(launcher, EXAMPLE)).values
    values |= {
        "nodes": 64 if launcher == "compose" else 1000,
        "matrix": {"env[0].value": ["x" * 99]},
        "env": [{"name": "A"}],
    }
    values |= {"trainer": {"task": "digits", "globalBatch": 64000}, "mountJobFile": True}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert command.main([str(file), "-o", str(tmp_path), "--launcher", launcher]) == 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("matrix=3", "--set: matrix=3: must be a mapping"),
        ("matrix={}", "matrix: has no keys; add one, e.g. trainer.lr: [0.01, 0.03]"),
        ("matrix={trainer.lr: 1}", "matrix.trainer.lr=1: must be a list"),
        ("matrix={trainer.lr: []}", "matrix.trainer.lr=[]: must not be empty"),
        (
            "matrix={trainer.lr: [1, 2, 1]}",
            "matrix.trainer.lr: 1 is in the list twice; leave out one",
        ),
        ("matrix={a..b: [1]}", "matrix.a..b: not a key that --set takes, e.g. trainer.lr"),
        (
            "matrix={name: [a]}",
            "matrix.name: cannot be varied; the jobs' names are made from the other keys",
        ),
        ("matrix={matrix.a: [1]}", "matrix.matrix.a: cannot be varied"),
        ("matrix[trainer]=[{}]", "matrix.trainer.lr: trainer sets it too; leave out one of them"),
        (
            "trainer.seed=1",
            (
                "matrix.trainer.seed: --set trainer.seed sets it too; leave that out, or remove "
                "the key from the matrix: --set 'matrix["
            ),
        ),
        (
            f"matrix[trainer.steps]={[*range(1, 50)]}",
            "matrix: 294 combinations, but at most 256 are allowed",
        ),
        ("matrix.maxParallel=0", "matrix.maxParallel=0: must be at least 1"),
        ("matrix.exclude=[{}]", "matrix.exclude[0]={}: must not be empty"),
        (
            "matrix.exclude=[{trainer.lr: 1}]",
            'matrix.exclude[0]: no combination has {"trainer.lr": 1}; compare it with the lists',
        ),
        (
            "matrix.exclude=[{trainer.rl: 1}]",
            "matrix.exclude[0]: trainer.rl is not varied; choose trainer.lr, trainer.seed",
        ),
        (
            "matrix.exclude=[{trainer.seed: 0}, {trainer.seed: 1}]",
            "matrix.exclude: leaves no combination; remove an item",
        ),
        (
            "matrix[nodes.min]=[1]",
            "matrix.nodes.min: min cannot be set, because 2 is not a mapping",
        ),
        ("name=A", "--set: name='A': must be lower-case letters"),
        # The message of a job has its name.
        (
            "matrix[trainer.lr]=[0.1, -1]",
            "--set: trainer.lr='-1': must be greater than 0 (job sweep-lr-1-seed0 of the matrix)",
        ),
        (
            "matrix[trainer.lrr]=[1]",
            "trainer.lrr: no such setting; did you mean trainer.lr? (job sweep-lr0-01-lrr1-seed0 of ",
        ),
        (
            "matrix[procsPerNode]=[-1]",
            "must be at least 0 (job sweep-procspernode-1-lr0-01-seed0 of",
        ),
        ("labels=3", "--set: labels=3: must be a mapping (job sweep-lr0-01-seed0 of the matrix)"),
    ],
)
def test_refusals(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "nodes=2", "--set", "trainer.mode=ddp", "--set", setting]
    assert says in refused([str(EXAMPLE), *settings], tmp_path, capsys)


def test_where_a_key_of_the_matrix_was_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("{matrix: {trainer.lr: [-1], exclude: null}}")
    line = refused([str(EXAMPLE), str(other)], tmp_path, capsys)
    assert line.startswith(f"render.py: {other}: trainer.lr='-1': ")


def test_several_files_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--diff", str(EXAMPLE)]):
        line = refused([str(EXAMPLE), *more], tmp_path, capsys, out=False)
        assert f"{EXAMPLE}: matrix: makes 5 files; add -o DIR" in line


@pytest.mark.parametrize("each", [[], ["--each"]])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_has_a_folder_for_each_job(
    launcher: str, each: list[str], tmp_path: Path
) -> None:
    each = [*each, *(part for key in without(launcher, EXAMPLE) for part in ("--set", key))]
    assert command.main([str(EXAMPLE), *each, "--launcher", launcher, "-o", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    for name, cell in zip(NAMES, cells(), strict=True):
        (file,) = (tmp_path / name).iterdir()
        text = file.read_text(encoding="utf-8")
        for setting, value in (
            ("LR", cell.values["trainer.lr"]),
            ("SEED", cell.values["trainer.seed"]),
        ):
            assert re.search(rf'TRAINER_{setting}(=|: |\n +value: )"?{value}"?( |\n)', text), (
                setting
            )
        if launcher not in CLUSTER:
            continue
        objects = list(yaml.load_all(text, yaml.CSafeLoader))
        assert all(one["metadata"]["labels"]["muster/matrix"] == "sweep" for one in objects)
        noted = ["muster/max-parallel" in one["metadata"].get("annotations", {}) for one in objects]
        assert noted == [False] * (len(objects) - 1) + [True]
        # Pods have nothing that may change while they run.
        assert text.count("muster/max-parallel") == 1


def test_the_file_alone_would_be_rendered_alike(tmp_path: Path) -> None:
    """A job equals the file with its settings, except for name, label and annotation."""
    arguments = [str(EXAMPLE), "--launcher", "jobset", "-o"]
    assert command.main([*arguments, str(tmp_path)]) == 0
    settings = ["matrix=", f"name={NAMES[2]}", "trainer.lr=0.03", "trainer.seed=0"]
    settings += ["labels[muster/matrix]=sweep"]
    sets = [part for setting in settings for part in ("--set", setting)]
    assert command.main([*arguments, str(tmp_path / "alone"), *sets]) == 0
    alone = list(yaml.safe_load_all((tmp_path / "alone/jobset.yaml").read_text()))
    alone[-1]["metadata"]["annotations"] = {"muster/max-parallel": "2"}
    assert list(yaml.safe_load_all((tmp_path / NAMES[2] / "jobset.yaml").read_text())) == alone


def test_no_two_jobs_share_a_folder(tmp_path: Path) -> None:
    sets = ["trainer.out=/out/mine/", "trainer.checkpoints=s3://bucket/sweep"]
    for cell in cells(*sets):
        trainer, name = cell.job.values["trainer"], cell.job.values["name"]
        assert trainer["out"] == f"/out/mine/{name}"
        assert trainer["checkpoints"] == f"s3://bucket/sweep/{name}"


def test_a_matrix_beside_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml"
    assert command.main([str(other), str(EXAMPLE), "--each", "-o", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"digits-ddp", *NAMES}
    capsys.readouterr()
    # Another file has a job with the same name.
    single = tmp_path / "single.yaml"
    single.write_text(f"{{name: {NAMES[1]}, image: 'a:1'}}")
    line = refused([str(EXAMPLE), str(single), "--each"], tmp_path, capsys)
    assert f"{single}: name='{NAMES[1]}': already the name in {EXAMPLE}" in line


@pytest.mark.slow  # a dry run
def test_the_plan_shows_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(EXAMPLE), "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "matrix: 5 jobs, 2 at a time; the plan below is that of the first job"
    assert lines[1].split() == ["job", "trainer.lr", "trainer.seed"]
    rows = [line.split() for line in lines[2:7]]
    assert [row[0] for row in rows] == NAMES
    assert rows[4][1:] == ["0.1", "0"]
    assert lines[7] == NAMES[0]
    assert sum(line.startswith("  launcher") for line in lines) == 1


def test_rights_for_all_jobs(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert command.main([str(EXAMPLE), "--rbac", "user:jane"]) == 0
    roles = [one["metadata"]["name"] for one in yaml.safe_load_all(capsysbinary.readouterr().out)]
    assert [name for name in roles if ":" not in name] == [
        *(f"muster-job-{name}" for name in NAMES),
        "muster-doctor",
    ]


def test_the_schema_takes_it() -> None:
    import jsonschema

    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    jsonschema.validate(values, json_schema())
    wrong: dict[str, Any]
    for wrong in ({"trainer.lr": 1}, {"maxParallel": 0}, {"exclude": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values | {"matrix": wrong}, json_schema())


def test_it_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--explain", "matrix"]) == 0
    out = capsys.readouterr().out
    assert "one for each combination of values" in out
    assert "maxParallel" in out
