"""What `python -m k8s logs` shows and saves, with an API that only stores."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cluster.observe import logs
from tests.cluster_objects import (
    COMPLETED,
    JOBSET,
    RUNNING,
    STEP,
    USAGE,
    Cluster,
    Run,
    fill,
    jobset,
    pod,
)
from tests.standin.server import Server


def speak(server: Server) -> None:
    """Write a line of the launchers and of all four ranks of two nodes, as trainer.launch does."""
    for node in range(2):
        ranks = [f"[rank {rank}] {rank} is here" for rank in (2 * node, 2 * node + 1)]
        events = [USAGE, STEP] if node == 0 else []
        words = ["launch: here", *ranks, *events, f"launch: rank {2 * node + 1}: out of order"]
        server.logs[f"digits-node-0-{node}"] = "\n".join(words)  # the last line is torn


SAID = {
    "[node 0] launch: here": None,
    "[node 1] launch: here": None,
    "[node 0 rank 0] 0 is here": 0,
    f"[node 0 rank 0] {USAGE}": 0,
    f"[node 0 rank 0] {STEP}": 0,
    "[node 0 rank 1] 1 is here": 1,
    "[node 0 rank 1] launch: rank 1: out of order": 1,
    "[node 1 rank 2] 2 is here": 2,
    "[node 1 rank 3] 3 is here": 3,
    "[node 1 rank 3] launch: rank 3: out of order": 3,
}


@pytest.mark.parametrize("follow", [[], ["--follow"]])
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], [*SAID]),
        (["--node", "1"], [line for line in SAID if line.startswith("[node 1")]),
        (["--rank", "0"], [line for line, rank in SAID.items() if rank == 0]),
        (["--rank", "3", "--rank", "1"], [line for line, rank in SAID.items() if rank in (1, 3)]),
        (
            ["--rank", "3", "--node", "0"],
            [line for line, rank in SAID.items() if rank == 3 or line.startswith("[node 0")],
        ),
    ],
)
def test_logs_come_with_their_node_and_rank_and_leave_no_thread(
    options: list[str], shown: list[str], follow: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    speak(server)
    code, out, _ = run(config, "logs", "digits", *follow, *options)
    assert code == 0
    assert sorted(out.splitlines()) == sorted(shown)
    assert not [t for t in threading.enumerate() if t.name.startswith("log of")]


def test_all_lines_of_a_pod_of_one_rank_are_that_ranks(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    for node in range(2):
        found = pod(f"digits-node-0-{node}", node, phase="Succeeded")
        found["spec"]["containers"][0]["env"][0]["value"] = "1"
        server.put("v1", "Pod", found)
        server.logs[f"digits-node-0-{node}"] = f"launch: here\n[rank {node}] too\n"
    code, out, _ = run(config, "logs", "digits", "--rank", "1")
    assert code == 0
    assert out.splitlines() == ["[node 1] launch: here", "[node 1 rank 1] too"]


def test_the_ranks_of_an_elastic_job_may_be_in_any_pod(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    env = [{"name": "PET_NNODES", "value": "1:4"}]
    template = {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}
    server.put(
        *JOBSET, jobset({"replicatedJobs": [{"name": "node", "template": template}]}, **COMPLETED)
    )
    server.logs["digits-node-0-0"] = "[rank 3] here\n"  # as the rendezvous assigned them
    server.logs["digits-node-0-1"] = "[rank 1] there\n"
    assert run(config, "logs", "digits", "--rank", "3")[1] == "[node 0 rank 3] here\n"


def test_a_container_that_prepares_the_pod_is_shown_and_then_the_trainer(
    run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**RUNNING))
    running: dict[str, Any] = {"state": {"running": {}}}
    before = [{"name": name, **running} for name in ("proxy", "setup")]
    found = pod("digits-node-0-0", 0, phase="Pending", initContainerStatuses=before)
    found["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always"},  # a sidecar, which runs until the end
        {"name": "setup"},
    ]
    server.put("v1", "Pod", found)

    def log(_: str, query: dict[str, str]) -> Iterator[bytes]:
        yield f"{query['container']} is here\n".encode()
        started = {"containerStatuses": [{"name": "trainer", **running}], "phase": "Running"}
        server.put("v1", "Pod", found | {"status": found["status"] | started})
        if query["container"] == "trainer":
            server.put(*JOBSET, jobset(**COMPLETED))

    server.log = log
    assert run(config, "logs", "digits", "-f")[:2] == (
        0,
        "[node 0] setup is here\n[node 0] trainer is here\n",
    )


def test_a_node_and_a_rank_that_are_not_there_are_refused(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    code, _, err = run(config, "logs", "digits", "--rank", "4")
    assert code == 64
    assert "--rank 4: job digits has ranks 0 to 3" in err
    code, out, err = run(config, "logs", "digits", "--node", "2")
    assert (code, out) == (64, "")
    assert "--node 2: job digits has nodes 0 to 1" in err


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
    for file, kind in ("job", "JobSet"), ("digits-node-0-0", "Pod"):
        assert yaml.safe_load((folder / f"{file}.yaml").read_text())["kind"] == kind
    (tmp_path / "file").touch()
    code, _, err = run(config, "logs", "digits", "--save", str(tmp_path / "file"))
    assert code == 64
    assert "--save" in err
    assert run(config, "logs", "digits", "--save", str(folder), "-f")[0] == 64


def test_of_a_line_without_end_the_begin_is_shown(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    server.logs["digits-node-0-0"] = f"{'x' * 600_000}\nthe next\n"
    monkeypatch.setattr(logs, "_LONGEST", 1000)
    code, out, _ = run(config, "logs", "digits", "--node", "0")
    first, second = out.splitlines()
    assert (code, second) == (0, "[node 0] the next")
    assert 1000 < len(first) < 100_000


def test_a_message_with_half_a_character_is_saved(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    about = {"kind": "Pod", "metadata": {"name": "digits-node-0-0", "namespace": "lab"}}
    server.event(about, "a", "b \ud800 c")
    assert run(config, "logs", "digits", "--save", str(tmp_path))[0] == 0
    assert "a: b \\ud800 c" in (tmp_path / "events.txt").read_text(encoding="utf-8")
