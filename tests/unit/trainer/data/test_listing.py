"""The list of a folder's files: in the order of their paths, kept while the folders do not change."""

import errno
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.data.listing import Listing, listed

CLASSES = ["cat", "dog", "none"]
TREE = [
    "cat/b.jpg",
    "cat/a/2.jpg",
    "cat/a/10.jpg",
    "cat/a-1.JPG",
    "dog/\udce9.jpg",
    "dog/note.txt",
    "dog/.jpg",
]
IN_ORDER = [("cat/a/10.jpg", 0), ("cat/a/2.jpg", 0), ("cat/a-1.JPG", 0), ("cat/b.jpg", 0)]
IN_ORDER += [("dog/\udce9.jpg", 1)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of images in which nothing has changed for an hour."""
    for name in ["none/x.txt", *TREE]:
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    age(tmp_path / "train")
    return tmp_path / "train"


def age(root: Path, *, seconds: float = 3600) -> None:
    """Set the time at which each folder was last changed."""
    then = time.time() - seconds
    for where, _, _ in os.walk(root):
        os.utime(where, (then, then))


def listing(root: Path, classes: list[str] = CLASSES) -> Listing:
    return listed(root, classes, suffixes={".jpg"}, keep=root.parent / "kept")


def below(found: Listing, root: Path) -> list[tuple[str, int]]:
    return [(path.removeprefix(f"{root}/"), label) for path, label in found]


def test_files_are_in_the_order_of_their_paths_also_from_the_kept_list(root: Path) -> None:
    """A resumed run takes samples by their numbers, so the order must not change."""
    first, second = listing(root), listing(root)
    assert below(first, root) == below(second, root) == IN_ORDER
    assert second[-1] == first[4] == (f"{root}/dog/\udce9.jpg", 1)
    assert second[1:3] == [first[1], first[2]]
    with pytest.raises(IndexError):
        second[5]


def test_a_kept_list_is_read_in_place_of_the_folders(root: Path) -> None:
    listing(root)
    then = (root / "cat").stat().st_mtime_ns
    (root / "cat" / "c.jpg").touch()
    os.utime(root / "cat", ns=(then, then))  # so that only a read of the folder can detect it
    assert below(listing(root), root) == IN_ORDER


CHANGES: dict[str, Callable[[Path], object]] = {
    "new": lambda root: (root / "cat/c.jpg").touch(),
    "new below": lambda root: (root / "cat/a/3.jpg").touch(),
    "gone": lambda root: (root / "cat/b.jpg").unlink(),
    "other name": lambda root: (root / "cat/b.jpg").rename(root / "cat/c.jpg"),
    "new folder": lambda root: (root / "dog/more").mkdir(),
    "folder gone": lambda root: (root / "cat/a").rename(root.parent / "a"),
    "cut off": lambda root: os.truncate(root.parent / "kept", 40),
    "not a list": lambda root: (root.parent / "kept").write_bytes(b"\0" * 64),
    "no list": lambda root: (root.parent / "kept").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_listed_again(root: Path, change: str) -> None:
    listing(root)
    CHANGES[change](root)
    wanted = listed(root, CLASSES, suffixes={".jpg"})
    assert list(listing(root)) == list(wanted)
    age(root)
    assert (
        list(listing(root)) == list(listing(root)) == list(wanted)
    )  # the second is that of the list that is kept now


def test_a_list_is_for_its_folder_and_its_classes(root: Path) -> None:
    listing(root)
    assert below(listing(root, ["dog", "cat"]), root)[0] == ("dog/\udce9.jpg", 0)
    (root.parent / "other").symlink_to(root)
    elsewhere = listing(root.parent / "other")
    assert elsewhere[0] == (f"{root.parent}/other/cat/a/10.jpg", 0)


def test_folders_that_are_links_are_read_too(root: Path) -> None:
    (root.parent / "more").mkdir()
    (root.parent / "more" / "x.jpg").touch()
    (root / "none" / "more").symlink_to(root.parent / "more")
    age(root)
    age(root.parent / "more")
    assert below(listing(root), root) == [*IN_ORDER, ("none/more/x.jpg", 2)]
    (root.parent / "more" / "y.jpg").touch()
    assert len(listing(root)) == len(IN_ORDER) + 2


def test_a_folder_that_has_just_changed_may_change_again_unseen(root: Path) -> None:
    age(root, seconds=5)
    assert below(listing(root), root) == IN_ORDER
    assert not (root.parent / "kept").exists()


def test_a_worker_maps_the_kept_list(root: Path) -> None:
    first = listing(root)
    second = pickle.dumps(listing(root))
    assert len(second) < 300
    for sent in (second, pickle.dumps(first)):
        assert list(pickle.loads(sent)) == list(first)  # noqa: S301  # made a line above


def test_a_list_that_cannot_be_kept_costs_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root.parent / "kept").mkdir()
    assert below(listing(root), root) == IN_ORDER
    assert "the list of files cannot be saved and is made again at each start" in caplog.text
    assert sorted(path.name for path in root.parent.iterdir()) == ["kept", "train"]


@pytest.mark.parametrize("folder", ["dog", "cat/a"])
def test_a_folder_that_cannot_be_read_is_not_left_out(
    root: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.scandir

    def scandir(path: str) -> Any:  # root, as which tests may run, can read every folder
        if path.endswith(folder):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match=f"Permission denied: '.*/{folder}'"):
        listing(root)
