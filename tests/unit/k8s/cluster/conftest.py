"""The verbs poll this cluster more often than a real one."""

import pytest


@pytest.fixture(autouse=True)
def look_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in (
        "client.objects._TURN",
        "client.watch._LEAST",
        "forward._INTERVAL",
        "observe.logs._INTERVAL",
        "submit.copy_code._TURN",
    ):
        monkeypatch.setattr(f"k8s.cluster.{pause}", 0.05)
