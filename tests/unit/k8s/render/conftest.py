"""The folder of a user's own program."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, which is the current folder."""
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "train.py").write_text("import package.part\n")
    (code / "package" / "part.py").write_text("")
    monkeypatch.chdir(code)
    return code
