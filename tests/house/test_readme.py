"""The README says what the code does: its tables are made from it, its example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, clean_environment
from trainer.config.environment import variable
from trainer.config.settings import Settings
from trainer.tools.reference import rewrite

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert rewrite(README) == README, "make docs"
    assert README.count("| `TRAINER_") > 20


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"run", "test", "render"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_every_file_linked_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_test_and_setting_named_exists() -> None:
    tests = set(re.findall(r"\btests/[a-z_/]+(?:\.py)?\b", README))
    assert len(tests) > 10
    assert [name for name in tests if not (ROOT / name).exists()] == []
    settings = {variable(name) for name in Settings.model_fields}
    assert set(re.findall(r"TRAINER_[A-Z_]*[A-Z]", README)) <= settings


@pytest.mark.slow
def test_the_task_of_ones_own_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) <= 30
    (tmp_path / "circles.py").write_text(code, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "trainer"],
        cwd=tmp_path,
        env=clean_environment(TRAINER_TASK="circles:Circles", TRAINER_EPOCHS="5"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert float(re.findall(r'"accuracy": ([0-9.]+)', result.stdout)[-1]) > 0.95


def test_the_job_file_shown_is_the_example() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    example = (ROOT / "k8s/jobs/digits-ddp.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(shown) == yaml.safe_load(example)
