"""Verbs that act on running pods on a cluster: `profile` and `sync`.

make test-cluster IMAGE=registry.example/muster:cpu
"""

import time
from pathlib import Path

import pytest

from tests.cluster.conftest import FIGURES, Verbs
from tests.cluster.running import START, endless, job, submitted, trained_to, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_rank_is_profiled_when_asked(verbs: Verbs, claim: str) -> None:
    with submitted(verbs, "job", endless("profiled", claim)) as name:
        trained_to(verbs, name, 5)
        lines = verbs.does("profile", name).splitlines()
        assert len(lines) == 2
        assert all("asked; its ranks write the next 5 steps to /out" in line for line in lines)

        def profiled() -> list[int]:
            found = [one for one in verbs.events(name) if one["event"] == "profile"]
            return [one["last"] - one["first"] for one in found]

        assert until(profiled, 60, lambda: verbs.events(name)) == [4]


STEPS = """
import time
from value import LOSS
step = 0
while True:
    step += 1
    print(f"step={step} loss={LOSS}", flush=True)
    time.sleep(0.05)
"""


def test_changed_code_reaches_the_ranks_without_new_pods(
    verbs: Verbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    (tmp_path / "value.py").write_text("LOSS = 1")
    monkeypatch.chdir(tmp_path)
    values = job("synced") | {
        "procsPerNode": 1,
        "run": {"script": "train.py", "patterns": "key=value"},
        "code": {"path": "."},
        "faults": {"restarts": "ranks", "maxRestarts": 0},  # a counted restart would end it
    }
    del values["trainer"]
    with submitted(verbs, "job", values) as name:

        def first(loss: int) -> float:
            found = verbs.events(name)
            return next((one["time"] for one in found if one.get("loss") == loss), 0.0)

        until(lambda: first(1), START, lambda: verbs.status(name))
        pods = [one["name"] for one in verbs.status(name)["pods"]]
        assert "already runs this code" in verbs.does("sync", name, str(tmp_path))
        (tmp_path / "value.py").write_text("LOSS = 2")
        began = time.time()
        *said, last = verbs.does("sync", name, str(tmp_path)).splitlines()
        took = time.time() - began
        assert len(said) == 2
        seconds = until(lambda: first(2), 30, lambda: verbs.events(name)) - began
        FIGURES.append(f"sync: {took:.1f} s; two pods step with the new code after {seconds:.1f} s")
        assert [one["name"] for one in verbs.status(name)["pods"]] == pods
        code = last.partition("code ")[2].partition(",")[0]
        logs = verbs.does("logs", name)
        for node in (0, 1):
            assert f"[node {node}] launch: the ranks start with the new code {code}" in logs
            assert f"[node {node} rank {node}] step=1 loss=2" in logs
