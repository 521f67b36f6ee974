"""The commit of a folder, and whether files have changed since."""

from pathlib import Path

import pytest

from tests.conftest import git
from trainer.commit import commit_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "train.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    return tmp_path


def test_a_folder_that_has_changed_is_dirty_and_its_neighbour_is_not(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository, new_files=True) == commit
    (repository / "a" / "new.py").write_text("")
    assert commit_of(repository, new_files=False) == commit
    assert commit_of(repository, new_files=True) == f"{commit}-dirty"
    assert commit_of(repository / "b", new_files=True) == commit
    (repository / "a" / "train.py").write_text("changed")
    assert commit_of(repository / "a", new_files=False) == f"{commit}-dirty"


def test_none_is_known(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    assert commit_of(other, new_files=True) is None
    git(other, "init", "--quiet")
    assert commit_of(other, new_files=True) is None  # without any commit
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as in a hook of another repository
    assert commit_of(other, new_files=True) is None
    assert commit_of(repository / "gone", new_files=True) is None
    monkeypatch.setenv("PATH", "")
    assert commit_of(repository, new_files=True) is None
