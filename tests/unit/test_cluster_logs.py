"""What `python -m k8s logs` shows and saves, against an API that stores what it is given."""

import threading
from pathlib import Path

import pytest
import yaml

from tests.apiserver import Server
from tests.cluster_objects import (
    COMPLETED,
    RUNNING,
    STEP,
    USAGE,
    Run,
    fill,
    pod,
)

Cluster = tuple[Server, Path]


def test_logs_come_with_their_node_and_leave_no_thread(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    words = ("launch: here", USAGE, STEP)
    for arguments in (["logs", "digits"], ["logs", "digits", "--follow"]):
        code, out, _ = run(config, *arguments)
        assert code == 0
        assert sorted(out.splitlines()) == sorted(
            f"[node {node}] {line}" for node in range(2) for line in words
        )
    assert not [t for t in threading.enumerate() if t.name.startswith("log of")]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["--node", "1"], {1}),
        (["--rank", "0"], {0}),
        (["--rank", "3", "--rank", "2"], {1}),
        (["--rank", "3", "--node", "0"], {0, 1}),
    ],
)
def test_logs_of_some(options: list[str], nodes: set[int], run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    code, out, _ = run(config, "logs", "digits", *options)
    assert code == 0
    assert {int(line[6]) for line in out.splitlines()} == nodes


def test_a_rank_that_is_not_there_is_refused(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    code, _, err = run(config, "logs", "digits", "--rank", "4")
    assert code == 64
    assert "--rank 4: job digits has 0 to 3" in err


def test_logs_are_asked_for_since_and_previous(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    server.logs["digits-node-0-1.previous"] = "before\n"
    code, out, _ = run(config, "logs", "digits", "--since", "60", "--previous", "--node", "1")
    assert (code, out) == (0, "[node 1] before\n")
    (asked,) = (path for _, path in server.requests if "/log" in path)
    assert {"sinceSeconds=60", "previous=true", "container=trainer"} <= set(
        asked.split("?")[1].split("&")
    )


def test_save_collects_all_that_tells_what_happened(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    again = pod("digits-node-0-1", 1, phase="Running")
    again["spec"]["initContainers"] = [{"name": "fetch"}]
    again["status"]["containerStatuses"] = [{"name": "trainer", "restartCount": 1}]
    server.put("v1", "Pod", again)
    server.logs["digits-node-0-1.previous"] = "before\n"
    folder = tmp_path / "saved"
    code, out, _ = run(config, "logs", "digits", "--save", str(folder))
    assert (code, out) == (0, "")
    assert {path.name for path in folder.iterdir()} == {
        "job.yaml",
        "events.txt",
        "digits-node-0-0.yaml",
        "digits-node-0-0.log",
        "digits-node-0-1.yaml",
        "digits-node-0-1.fetch.log",
        "digits-node-0-1.trainer.log",
        "digits-node-0-1.trainer.previous.log",
    }
    assert "digits-node-0-1: FailedMount: no such volume" in (folder / "events.txt").read_text()
    assert "before" in (folder / "digits-node-0-1.trainer.previous.log").read_text()
    assert yaml.safe_load((folder / "job.yaml").read_text())["kind"] == "JobSet"
    (tmp_path / "file").touch()
    code, _, err = run(config, "logs", "digits", "--save", str(tmp_path / "file"))
    assert code == 64
    assert "--save" in err
    assert run(config, "logs", "digits", "--save", str(folder), "-f")[0] == 64
