"""The image's lock: the part with torch agrees with the whole, and the bill of materials is complete."""

import json
import re
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.conftest import ROOT, run_command

DOCKER = ROOT / "docker"


def pins(name: str) -> set[str]:
    text = (DOCKER / name).read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+==[^ ]+)", text, flags=re.MULTILINE))


def test_the_locks_agree() -> None:
    assert pins("requirements-torch.txt") < pins("requirements.txt") < pins("requirements-dev.txt")


def locks() -> list[Path]:
    folders = [path for path in ROOT.iterdir() if path.name not in (".git", ".venv", "build")]
    below = (path for folder in folders for path in folder.rglob("*.txt"))
    return [
        path
        for path in (*ROOT.glob("*.txt"), *below)
        if re.search(r"^[a-z0-9_-]+==", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]


def test_no_lock_names_an_index() -> None:
    found = locks()
    assert len(found) >= 8
    for lock in found:
        assert "://" not in lock.read_text(encoding="utf-8"), lock


def test_the_audit_looks_at_every_lock() -> None:
    done = run_command(["make", "--dry-run", "audit"], check=True)
    looked_at = set(re.findall(r"\S+\.txt", done.stdout.replace(";", " ")))
    assert looked_at == {str(lock.relative_to(ROOT)) for lock in locks()}


def test_the_bill_of_materials_names_every_locked_package_with_its_licence(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    done = run_command([sys.executable, DOCKER / "sbom.py", DOCKER / "requirements.txt", target])
    assert done.returncode == 0, done.stderr
    bill = target.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    found = json.loads(bill)
    names = {component["name"]: component for component in found["components"]}
    assert {"torch", "torchvision", "pydantic", "numpy"} <= names.keys()
    assert "pytest" not in names
    assert names["pydantic"]["licenses"][0]["license"]["id"] == "MIT"
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert {ref.split("==")[0] for ref in needs["muster"]} >= {"torch", "pydantic", "scikit-learn"}


def test_a_bill_of_what_is_not_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("pydantic==1.0.0 \\\n    --hash=sha256:0\n")
    files = [tmp_path / "lock.txt", tmp_path / "sbom.json"]
    done = run_command([sys.executable, DOCKER / "sbom.py", *files])
    assert done.returncode == 64
    assert done.stderr.startswith("sbom: pydantic==1.0.0 is locked, but 2")
    assert not (tmp_path / "sbom.json").exists()
