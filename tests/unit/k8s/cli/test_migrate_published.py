"""render.py --migrate: manifests like those that projects publish: migrated, with notes, or refused."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from tests.rendering import render

PUBLISHED: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("published_manifests.yaml").read_text(encoding="utf-8"),
    yaml.CSafeLoader,
)


def at(values: Any, path: str) -> Any:
    """Return the value of a job file at a dotted path."""
    return reduce(
        lambda one, key: one[int(key) if key.isdecimal() else key], path.split("."), values
    )


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["source"])
def test_a_published_manifest_is_carried_or_refused(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "published.yaml"
    source.write_text(
        yaml.safe_dump_all([*case.get("beside", []), case["manifest"]]), encoding="utf-8"
    )
    code = command.main(["--migrate", str(source)])
    seen = capsys.readouterr()
    if "refused" in case:
        assert (code, seen.out) == (64, "")
        assert case["refused"] in seen.err
        assert len(seen.err.splitlines()) == 1
        return
    assert code == 0, seen.err
    values = yaml.safe_load(seen.out)
    assert {path: at(values, path) for path in case["gives"]} == case["gives"]
    for note in case.get("notes", []):
        assert note in seen.err
    by_hand = [line for line in seen.err.splitlines() if "to be corrected by hand" in line]
    assert len(by_hand) == ("by_hand" in case)
    assert all(case["by_hand"] in line for line in by_hand)
    if not by_hand:
        assert render(values, values["launcher"])
