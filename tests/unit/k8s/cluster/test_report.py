"""`python -m k8s report NAME`: with a real run's events in the logs of ended and running pods."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_objects import COMPLETED, JOBSET, RUNNING, Cluster, Run, jobset, pod
from tests.conftest import ROOT
from tests.ranks import run_ranks
from tests.standin.server import Server
from trainer.report.history import read

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The events that rank 0 of a real run writes."""
    folder = tmp_path_factory.mktemp("run")
    run_ranks(1, folder, task="synthetic", steps="20", log_steps="1")
    return (folder / "metrics.jsonl").read_text().splitlines()


def at(lines: list[str], seconds: float) -> list[str]:
    """Return the events with later times."""
    found = [json.loads(line) for line in lines]
    return [
        json.dumps(one | {n: one[n] + seconds for n in ("time", "began") if n in one})
        for one in found
    ]


def stamp(line: str) -> str:
    return datetime.fromtimestamp(int(json.loads(line)["time"]), UTC).isoformat()


def terminated(lines: list[str], code: int, reason: str) -> dict[str, Any]:
    times = {"startedAt": stamp(lines[0]), "finishedAt": stamp(lines[-1])}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


def fill(server: Server, before: list[str], now: list[str]) -> None:
    """Two pods: the first one's container was killed and restarted, the second one's runs."""
    server.put(*JOBSET, jobset(**COMPLETED))
    first = {"name": "trainer", "restartCount": 1, "state": terminated(now, 0, "Completed")}
    first["lastState"] = terminated(before, 137, "OOMKilled")
    server.put("v1", "Pod", pod("digits-0", 0, phase="Succeeded", containerStatuses=[first]))
    second = {"name": "trainer", "state": {"running": {"startedAt": stamp(before[0])}}}
    server.put("v1", "Pod", pod("digits-1", 1, phase="Running", containerStatuses=[second]))
    torn = '{"event": "step", "step": 9'
    server.logs["digits-0.previous"] = "\n".join(["launch: here", *before, torn])
    server.logs["digits-0"] = "\n".join(now)
    server.logs["digits-1"] = "[rank 1] nothing of note\n"


def test_a_report_of_pods_that_were_killed_and_ended(
    run: Run, cluster: Cluster, lines: list[str], tmp_path: Path
) -> None:
    server, config = cluster
    fill(server, at(lines[:12], -100), lines)
    out, saved = tmp_path / "digits.html", tmp_path / "saved"
    code, _, err = run(config, "report", "digits", "-o", str(out), "--save", str(saved))
    assert code == 0, err
    history = read(saved / "digits")
    assert [attempt.exit for attempt in history.attempts] == [137, 0]
    assert history.attempts[0].reason == "OOMKilled"
    assert history.curves["loss"].steps == list(range(1, 21))
    assert 80 < history.account.spent["down"] < 100
    text = out.read_text(encoding="utf-8")
    assert "<title>digits</title>" in text
    assert "OOMKilled" in text
    assert "(2 attempts)" in text


def test_without_events_or_a_package_it_is_one_line(
    run: Run, cluster: Cluster, lines: list[str], tmp_path: Path, start: Any
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**RUNNING))
    code, _, err = run(config, "report", "digits")
    assert code == 65
    assert "no event in the logs of job digits's pods; if they are gone, read its run" in err
    fill(server, lines, lines)
    (tmp_path / "file").touch()
    code, _, err = run(config, "report", "digits", "--save", str(tmp_path / "file"))
    assert (code, "Not a directory (exit 64)" in err) == (64, True)
    (tmp_path / "altair.py").write_text("raise ModuleNotFoundError(name='altair')")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = start("-m", "k8s", "report", "digits", KUBECONFIG=str(config), PYTHONPATH=paths)
    ended = process.end()
    assert ended.code == 71
    assert ended.stderr.splitlines()[1:] == [
        "report: no package altair; install it with pip install 'muster[report]' (exit 71)"
    ]
