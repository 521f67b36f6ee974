"""The archive of a folder: its files, the same bytes for the same files, refusals."""

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.render import archive
from k8s.render.archive import LIMITS, pack
from tests.conftest import git
from trainer.config.exits import Fault
from trainer.launcher.program.code_archive import extract


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def entries(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        return {one.name: one for one in opened}


IGNORED = "*.log\n!keep.log\n/data/\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    files = ["train.py", "package/a.py", "a.log", "keep.log", "data/large", "sub/data/small"]
    for name in [*files, ".hidden/a", ".new"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".gitignore").write_text(IGNORED)
    (folder / "empty").mkdir()
    return folder


KEPT = {"train.py", "package/a.py", "keep.log", "sub/data/small"}


def test_without_a_repository_all_but_hidden_and_ignored_files_travel(tree: Path) -> None:
    assert pack(tree, label="a").files == KEPT


def test_in_a_repository_tracked_and_new_files_travel(tree: Path) -> None:
    git(tree, "init", "--quiet")
    hidden = {".hidden/a", ".new", ".gitignore"}
    assert pack(tree, label="a").files == KEPT | hidden
    git(tree, "add", "--all")
    git(tree, "add", "--force", "a.log")
    git(tree, "commit", "--quiet", "-m", "a")
    (tree / "train.py").unlink()  # git still lists it
    assert pack(tree, label="a").files == (KEPT | hidden | {"a.log"}) - {"train.py"}


def test_a_folder_of_a_repository_travels_alone(tree: Path) -> None:
    git(tree, "init", "--quiet")
    assert pack(tree / "package", label="a").files == {"a.py"}


def test_a_repository_in_a_repository_travels_too(tree: Path) -> None:
    git(tree, "init", "--quiet")
    git(tree / "package", "init", "--quiet")
    assert "package/a.py" in pack(tree, label="a").files


def test_the_variables_of_a_git_hook_do_not_lead_to_another_repository(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tree / "none"))
    assert pack(tree, label="a").files == KEPT


def test_without_git_hidden_files_stay_and_gitignore_is_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tree))
    with pytest.raises(Fault, match=r"code\.path: \.gitignore needs git, which is not installed"):
        pack(tree, label="a")
    (tree / ".gitignore").unlink()
    assert pack(tree, label="a").files == KEPT | {"a.log", "data/large"}


def test_the_commit_travels_beside_the_archive_which_stays_the_same(tree: Path) -> None:
    none = pack(tree, label="a")
    assert none.commit is None
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "one")
    first = pack(tree, label="a")
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "two")
    second = pack(tree, label="a")
    assert first.content == second.content
    assert first.commit != second.commit
    written = tree / "out [1]"
    written.mkdir()
    (written / "job.yaml").touch()
    assert pack(tree, label="a", output=written).commit == second.commit
    (tree / "train.py").write_text("changed")
    assert pack(tree, label="a").commit == f"{second.commit}-dirty"


@pytest.mark.parametrize(
    "name",
    ["a.pem", "sub/b.key", ".env", ".env.local", "id_rsa", "id_ed25519.pub", "credentials"],
)
def test_what_looks_like_a_key_stays(name: str, tree: Path) -> None:
    git(tree, "init", "--quiet")
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("secret")
    found = pack(tree, label="a")
    assert name not in found.files
    assert found.left_out == (name,)


@pytest.mark.parametrize("name", ["id_map.py", "keys.py", "credentials.py", "environment"])
def test_what_has_only_a_name_like_it_travels(name: str, tree: Path) -> None:
    (tree / name).write_text("")
    assert name in pack(tree, label="a").files


def test_nothing_of_this_machine_is_in_it(tree: Path) -> None:
    (tree / "run.sh").write_text("")
    (tree / "run.sh").chmod(0o700)
    (tree / "package" / "a.py").chmod(0o600)
    first = pack(tree, label="a").content
    assert first[4:8] == bytes(4)  # the time in gzip's own header
    found = entries(first)
    assert list(found) == sorted(found)
    for one in found.values():
        assert (one.mtime, one.uid, one.gid, one.uname, one.gname) == (0, 0, 0, "", "")
    assert (found["run.sh"].mode, found["package/a.py"].mode) == (0o755, 0o644)
    os.utime(tree / "run.sh", (1, 1))
    (tree / "run.sh").chmod(0o711)
    assert pack(tree, label="a").content == first
    (tree / "run.sh").chmod(0o600)
    assert pack(tree, label="a").content != first


def test_links_inside_travel_as_links(tree: Path) -> None:
    (tree / "link").symlink_to("train.py")
    (tree / "folder").symlink_to("package")
    (tree / "package" / "up").symlink_to("../train.py")
    found = entries(pack(tree, label="a").content)
    assert {n: found[n].linkname for n in ("link", "folder", "package/up")} == {
        "link": "train.py",
        "folder": "package",
        "package/up": "../train.py",
    }


@pytest.mark.parametrize("target", ["..", "../other", "/etc/passwd", "package/../../other"])
def test_a_link_out_of_the_folder_is_refused(target: str, tree: Path) -> None:
    (tree / "link").symlink_to(target)
    with pytest.raises(Fault, match=f"^a: link is a link to {target}, outside the folder") as seen:
        pack(tree, label="a")
    assert seen.value.code == 64


def test_a_link_by_way_of_another_is_refused(tree: Path) -> None:
    (tree.parent / "outside").mkdir()
    (tree / "package" / "b").symlink_to("../c")
    (tree / "c").symlink_to("../outside")
    with pytest.raises(Fault, match="^a: c is a link to"):
        pack(tree, label="a")


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="^a: has no files to pack"):
        pack(tmp_path, label="a")


def test_a_file_that_cannot_be_read_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "a/train.py")

    monkeypatch.setattr(archive, "_add", no_entry)
    with pytest.raises(Fault, match="^a: a/train.py: Permission denied"):
        pack(tree, label="a")


def test_a_folder_of_gigabytes_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 36)  # sparse; it would take minutes
    monkeypatch.setitem(archive.LIMITS, "configMap", 1000)
    with pytest.raises(Fault, match=r"a \(67,108,864 KiB\)"):
        pack(tmp_path, label="a")


def test_a_refused_archive_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Python 3.13 would close it at some later time, and say on stderr that this failed."""
    closed, close = [], gzip.GzipFile.close

    def noted(file: gzip.GzipFile) -> None:
        close(file)
        closed.append(file)

    (tmp_path / "a").write_bytes(os.urandom(200_000))
    monkeypatch.setitem(archive.LIMITS, "configMap", 1000)
    monkeypatch.setattr(gzip.GzipFile, "close", noted)
    with pytest.raises(Fault, match="too much for a ConfigMap"):
        pack(tmp_path, label="a")
    assert closed


def test_the_border_is_the_limit_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a="a" * 1000, b="b")
    size = len(pack(tmp_path, label="a").content)
    monkeypatch.setitem(archive.LIMITS, "configMap", size)
    assert len(pack(tmp_path, label="a").content) == size
    monkeypatch.setitem(archive.LIMITS, "configMap", size - 1)
    with pytest.raises(
        Fault, match="^a: more than 0 KiB when compressed, too much for a ConfigMap"
    ):
        pack(tmp_path, label="a")
    assert len(pack(tmp_path, label="a", via="pvc").content) == size
    monkeypatch.setitem(archive.LIMITS, "pvc", size - 1)
    with pytest.raises(Fault, match="^a: more than 0 KiB when compressed; name what"):
        pack(tmp_path, label="a", via="pvc")


def test_a_refusal_lists_the_ten_largest(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"file-{number:02}").write_bytes(os.urandom((number + 1) * 2**14))
    with pytest.raises(Fault) as seen:
        pack(tmp_path, label="a")
    text = str(seen.value)
    assert f"more than {LIMITS['configMap'] // 1024} KiB" in text
    assert text.index("file-11 (192 KiB)") < text.index("file-10 (176 KiB)")
    assert text.count("KiB)") == 10
    assert "file-01" not in text
    assert all(
        way in text for way in (".gitignore", "code.via=pvc", "code.git", "an image", "a volume")
    )


# Names that a file system allows, except those that git or muster refuses or leaves out.
NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(
    lambda name: name.strip(". ") and not name.startswith((".", "id_")) and len(name.encode()) < 200
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.tuples(st.binary(max_size=200), st.booleans()), min_size=1),
    folder=NAMES,
)
def test_any_files_come_out_as_they_went_in(
    files: dict[str, tuple[bytes, bool]], folder: str
) -> None:
    files = {n: v for n, v in files.items() if not archive._looks_like_a_key(n)}  # noqa: SLF001
    with tempfile.TemporaryDirectory() as made:
        contents = []
        for copy in ("one", "two"):
            root = Path(made) / copy / "root"
            (root / folder).mkdir(parents=True)
            (root / "always").write_text("")
            for name, (text, is_program) in files.items():
                path = root / folder / name
                path.write_bytes(text)
                path.chmod(0o755 if is_program else 0o600)
            contents.append(pack(root, label="a").content)
        assert contents[0] == contents[1]
        out = Path(made) / "out"
        extract(contents[0], out, label="a")
        for name, (text, is_program) in files.items():
            path = out / folder / name
            assert path.read_bytes() == text
            assert bool(path.stat().st_mode & 0o100) == is_program
