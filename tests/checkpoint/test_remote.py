"""Checkpoints at a URL: a real S3 server over HTTP, and fsspec's memory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.small import equal, found, loaded, save, trained
from trainer.checkpoint.find import complete
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.store import Store, store_at
from trainer.config.exits import Exit, Fault


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Yield the URL of a new bucket on a server of this machine."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ |= variables
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket"
    os.environ.clear()
    os.environ |= before
    server.stop()


@pytest.fixture(params=["s3", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    place = request.getfixturevalue("bucket") if request.param == "s3" else "memory:/"
    return f"{place}/{request.node.name.partition('[')[0]}/checkpoints"


def overwrite(store: Store, folder: str, file: str, data: bytes) -> None:
    with store.create(folder, file) as opened:
        opened.write(data)


pytestmark = pytest.mark.slow


def test_what_was_saved_is_loaded_and_old_ones_go(url: str) -> None:
    assert found(url) is None
    for step in (1, 2, 3):
        save(url, step, keep=Keep(2))
    checkpoint = found(url)
    assert checkpoint is not None
    assert checkpoint.where == f"{url}/step-00000003"
    assert equal(loaded(checkpoint), trained(3))
    assert store_at(url).names() == ["step-00000002", "step-00000003"]
    assert complete(f"{url}/step-00000002").manifest.progress.step == 2


def test_without_its_listing_it_is_none_and_is_swept_away(url: str) -> None:
    save(url, 1)
    store = store_at(url)
    overwrite(store, store.begin("step-00000002"), "rank-00000.data", b"half")
    checkpoint = found(url)
    assert checkpoint is not None
    assert checkpoint.name == "step-00000001"
    with pytest.raises(FileNotFoundError):
        store.size("step-00000002", "rank-00000.data")


def test_a_damaged_one_is_skipped_and_kept_when_its_step_is_saved_again(url: str) -> None:
    save(url, 1)
    save(url, 2)
    store = store_at(url)
    overwrite(store, "step-00000002", "rank-00000.data", b"x" * 64)
    older = found(url)
    assert older is not None
    assert older.name == "step-00000001"
    save(url, 2)
    newest = found(url)
    assert newest is not None
    assert newest.name == "step-00000002"
    assert store.size("step-00000002.replaced.1", "rank-00000.data") == 64
    save(url, 3, keep=Keep(1))
    assert found(url) is not None
    with pytest.raises(FileNotFoundError):
        store.size("step-00000002.replaced.1", "rank-00000.data")


def test_starting_over_sets_them_aside(url: str) -> None:
    save(url, 1)
    assert found(url, "never") is None
    assert store_at(url).names() == []
    assert store_at(f"{url}/aside.1").names() == ["step-00000001"]
    assert found(url, "never") is None
    assert store_at(f"{url}/aside.2").names() == []


def test_those_of_a_whole_bucket_stay_in_it(bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    import fsspec

    fsspec.filesystem("s3").mkdir("whole")
    save("s3://whole", 1)
    with caplog.at_level("INFO", "trainer"):
        assert found("s3://whole", "never") is None
    assert store_at("s3://whole/aside.1").names() == ["step-00000001"]
    assert "are now in s3://whole/aside.1" in caplog.text


def test_a_url_that_nothing_knows_is_64() -> None:
    with pytest.raises(Fault, match="TRAINER_CHECKPOINTS=gopher://x: Protocol not known") as caught:
        store_at("gopher://x")
    assert caught.value.code == Exit.CONFIG


def test_two_ranks_save_to_s3_and_one_goes_on(bucket: str, tmp_path: Path) -> None:
    from tests.ranks import run_ranks

    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    plant = S3Variables({name: os.environ[name] for name in names})
    common = {"task": "synthetic", "eval_steps": "0", "checkpoints": f"{bucket}/run"}
    run_ranks(2, tmp_path / "two", plant, steps="4", **common)
    events = run_ranks(1, tmp_path / "one", plant, steps="6", **common)
    resumed = [event for event in events if event.get("action") == "resumed"]
    assert [(event["step"], event["path"]) for event in resumed] == [
        (4, f"{bucket}/run/step-00000004")
    ]


class S3Variables:
    """What a rank needs to find the server; it must be possible to pickle."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables

    def __call__(self) -> None:
        os.environ |= self.variables
