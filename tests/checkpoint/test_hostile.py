"""Checkpoints that a stranger put on the volume: reads end, nothing waits, and a key rejects them."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.bounds import bounded
from tests.checkpoint.small import equal, found, loaded, save, trained
from trainer.checkpoint.find import complete
from trainer.checkpoint.manifest import MANIFEST_FILE, checksum
from trainer.config.environment import KEY
from trainer.config.exits import Fault

REPLACED: dict[str, Callable[[Path], object]] = {
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a large file": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize("name", [MANIFEST_FILE, "rank-00000.data"])
def test_only_regular_files_of_their_size_are_read(kind: str, name: str, tmp_path: Path) -> None:
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    (Path(newest) / name).unlink()
    REPLACED[kind](Path(newest) / name)
    where: list[str] = []

    def look() -> None:
        checkpoint = found(tmp_path)
        where.append(checkpoint.where if checkpoint else "none")
        assert where == [older]

    assert bounded(look) == ""
    assert bounded(partial(complete, newest)).startswith(f"65: {newest}: not a complete checkpoint")


def signed_anew(listing: Path, **progress: object) -> None:
    """Change the progress in a manifest, and set the checksum, which anybody can compute."""
    body = json.loads(listing.read_text(encoding="utf-8"))["checkpoint"]
    body["progress"] |= progress
    outer = {"checksum": checksum(body), "checkpoint": body}
    listing.write_text(json.dumps(outer), encoding="utf-8")


@pytest.mark.parametrize("step", [100, 99_999_999_999_999_999_999])
def test_a_planted_step_beyond_the_runs_own_is_damage(step: int, tmp_path: Path) -> None:
    older = save(tmp_path, 1)
    planted = tmp_path / f"step-{step:08d}"
    shutil.copytree(older, planted)
    signed_anew(planted / MANIFEST_FILE, step=step, steps=50)
    checkpoint = found(tmp_path)
    assert checkpoint is not None
    assert checkpoint.where == older


def test_with_a_key_only_its_holder_makes_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "correct horse battery staple")
    mine = Path(save(tmp_path, 3))
    checkpoint = found(tmp_path)
    assert checkpoint is not None
    assert equal(loaded(checkpoint), trained(3))
    listing = (mine / MANIFEST_FILE).read_bytes()
    data = mine / "rank-00000.data"
    content = data.read_bytes()

    signed_anew(mine / MANIFEST_FILE, samples=1)
    assert "is not signed, and TRAINER_CHECKPOINT_KEY is set" in refusal(mine)

    # Other weights with the right checksum: in the file and in the manifest.
    other = bytes(len(content))
    data.write_bytes(other)
    body = json.loads(listing)["checkpoint"]
    body["files"]["rank-00000.data"]["crc32"] = zlib.crc32(other)
    body = {"checksum": checksum(body), "checkpoint": body}
    (mine / MANIFEST_FILE).write_text(json.dumps(body), encoding="utf-8")
    assert "is not signed" in refusal(mine)

    # Other weights that have the same CRC-32.
    (mine / MANIFEST_FILE).write_bytes(listing)
    data.write_bytes(same_crc(content))
    assert "rank-00000.data was not signed with this" in refusal(mine)

    data.write_bytes(content)
    assert complete(str(mine)).manifest.progress.step == 3
    monkeypatch.setenv(KEY, "another")
    assert "muster.json was not signed with this" in refusal(mine)
    monkeypatch.delenv(KEY)
    assert "muster.json is signed; TRAINER_CHECKPOINT_KEY is needed" in refusal(mine)


def test_an_unsigned_one_is_not_believed_once_there_is_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path(save(tmp_path, 3))
    assert "signature" not in (mine / MANIFEST_FILE).read_text(encoding="utf-8")
    monkeypatch.setenv(KEY, "x")
    assert "is not signed" in refusal(mine)
    with pytest.raises(Fault, match="all 1 checkpoints are damaged"):
        found(tmp_path)


def refusal(checkpoint: Path) -> str:
    with pytest.raises(Fault) as caught:
        complete(str(checkpoint))
    assert caught.value.code == 65
    return str(caught.value)


def same_crc(content: bytes) -> bytes:
    """Return other bytes with the same CRC-32: the last four compensate for a change of the first."""
    changed = bytes([content[0] ^ 1]) + content[1:-4]
    wanted = zlib.crc32(content)
    # CRC-32 is linear: each of the 32 bits of the end flips certain bits of the checksum.
    base = zlib.crc32(changed + bytes(4))
    rows = [
        (zlib.crc32(changed + (1 << bit).to_bytes(4, "little")) ^ base, 1 << bit)
        for bit in range(32)
    ]
    target, solution = wanted ^ base, 0
    for place in range(32):
        pivot = next(row for row in rows if row[0] >> place & 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> place & 1 else row
            for row in rows
            if row is not pivot
        ]
        if target >> place & 1:
            target, solution = target ^ pivot[0], solution ^ pivot[1]
    found = changed + solution.to_bytes(4, "little")
    assert zlib.crc32(found) == wanted
    assert found != content
    return found
