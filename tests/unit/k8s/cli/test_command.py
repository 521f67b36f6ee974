"""render.py's ways to look at a rendering: --all, --diff, --explain."""

import re
from pathlib import Path

import pytest
import yaml

from k8s import launchers
from k8s.cli import command, explain
from k8s.jobfile import spec
from tests.rendering import EXAMPLE, GOLDEN, LAUNCHERS, ROOT

JOB = GOLDEN / "digits-ddp" / "job.yaml"


def test_all_writes_for_every_launcher_that_has_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = {name for name in LAUNCHERS if "faults.deadline" in launchers.find(name).lacks}
    assert lacking
    assert command.main([str(EXAMPLE), "--all", "-o", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.iterdir()} == set(LAUNCHERS) - lacking
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said if line.startswith("without ")] == [
        f"without {name}" for name in sorted(lacking)
    ]
    assert all("faults.deadline=3600" in line for line in said if line.startswith("without "))
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (GOLDEN / "digits-ddp" / file.name).read_bytes()


def test_all_is_refused_when_every_launcher_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--set", "trainer.mode=dpp", "-o", str(tmp_path / "written")]
    assert command.main([str(EXAMPLE), "--all", *wrong]) == 64
    seen = capsys.readouterr().err
    assert seen.count("\n") == 1
    assert "trainer.mode='dpp': no such mode" in seen
    assert not (tmp_path / "written").exists()


def test_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(EXAMPLE), "--diff", str(JOB)]) == 0
    other = tmp_path / "other.yaml"
    written = yaml.safe_dump_all(yaml.safe_load_all(JOB.read_text()), sort_keys=False, indent=8)
    other.write_text(f"# the same in other words\n{written}")
    assert command.main([str(EXAMPLE), "--diff", str(other)]) == 0
    assert capsys.readouterr().out == ""
    script = GOLDEN / "digits-ddp" / "local.sh"
    assert command.main([str(EXAMPLE), "--launcher", "local", "--diff", str(script)]) == 0


def test_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    before = JOB.read_bytes()
    assert command.main([str(EXAMPLE), "--set", "faults.ttl=60", "--diff", str(JOB)]) == 1
    changes = capsys.readouterr().out.splitlines()
    assert changes[0] == f"--- {JOB}"
    assert [line for line in changes[2:] if line.startswith(("+", "-"))] == [
        "+  ttlSecondsAfterFinished: 60"
    ]
    assert JOB.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("name", ["name: text\n", "the job's name"]),
        (
            "nodes",
            [
                "nodes: a whole number or a mapping\n",
                "default: 1",
                "min  the smallest number of nodes",
            ],
        ),
        ("trainer.lr", ["trainer.lr: a number\n", "default: 0.03"]),
        ("trainer.taskLayers", ["a setting of the task's own, TRAINER_TASK_LAYERS"]),
        ("trainer.mode", ["trainer.mode: one of auto, single"]),
        ("scheduling.gang", ["scheduling.gang: true or false", "default: false"]),
        ("env", ["env: a list of mappings\n", "valueFrom  where the value comes from"]),
        ("env[0].valueFrom.secretKeyRef.key", ["env.valueFrom.secretKeyRef.key: text"]),
        ("imagePullSecrets", ["imagePullSecrets: a list of texts\n"]),
        ("faults.ttl", ["not on launcher trainjob: a TrainJob has no ttl"]),
        ("resources.memory", ["resources.memory: text or a number\n"]),
        (
            "run.patterns",
            ["run.patterns: one of transformers, lightning, torchtitan, key=value or a m"],
        ),
    ],
)
def test_a_key_is_explained(key: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--explain", key]) == 0
    seen = capsys.readouterr().out
    assert [part for part in words if part not in seen] == []


def test_every_key_is_explained() -> None:
    def walk(key: str) -> int:
        lines = explain.explain(key).splitlines()
        assert lines[1].strip(), key
        below = [line.split()[0] for line in lines if line.startswith("    ")]
        return 1 + sum(walk(f"{key}.{name}") for name in below)

    assert sum(walk(str(field.alias)) for field in spec.JobSpec.model_fields.values()) > 80


def test_what_the_other_kits_say_is_a_key_here() -> None:
    rows = (ROOT / "k8s" / "peers.md").read_text().splitlines()
    first = [line.split(" | ")[0] for line in rows if line.startswith("| `")]
    keys = [key for cell in first for key in re.findall("`([^`]+)`", cell)]
    assert len(keys) > 30
    for key in keys:
        assert explain.explain(key)


def test_each_file_is_a_job_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"{{name: {name}, image: 'a:1'}}")
        paths.append(str(path))
    out = tmp_path / "out"
    arguments = ["--each", "--launcher", "job", "--launcher", "local", "-o", str(out)]
    assert command.main([*paths, *arguments, "--set", "nodes=2"]) == 0
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*.*"))
    assert found == ["first/job.yaml", "first/local.sh", "second/job.yaml", "second/local.sh"]
    assert "completions: 2" in (out / "second" / "job.yaml").read_text()
    capsys.readouterr()
    # Two jobs of one name would overwrite each other; nothing is written then.
    assert command.main([*paths, *arguments[:-1], str(tmp_path / "b"), "--set", "name=a"]) == 64
    assert "name='a': already the name in " in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert command.main([*paths, "--each", "--rbac", "user:jane"]) == 0
    assert capsys.readouterr().out.count("kind: RoleBinding") == 2


def test_one_file_per_object_for_kustomize(tmp_path: Path) -> None:
    assert command.main([str(EXAMPLE), "--split", "-o", str(tmp_path)]) == 0
    folder = tmp_path / "job"
    index = yaml.safe_load((folder / "kustomization.yaml").read_text())
    whole = list(yaml.safe_load_all(JOB.read_text()))
    assert index["kind"] == "Kustomization"
    assert [yaml.safe_load((folder / name).read_text()) for name in index["resources"]] == whole
    assert len(list(folder.iterdir())) == len(whole) + 1


def test_the_owner_is_the_job(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert command.main([str(EXAMPLE), "--owner", "1234"]) == 0
    *others, made = yaml.safe_load_all(capsysbinary.readouterr().out)
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == "1234" for one in others)
    assert "ownerReferences" not in made["metadata"]


def test_scripts_can_be_run_and_manifests_cannot(tmp_path: Path) -> None:
    example = [str(EXAMPLE), "-o", str(tmp_path)]
    assert command.main([*example, "--launcher", "job", "--launcher", "local"]) == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"job.yaml": 0o644, "local.sh": 0o755}
