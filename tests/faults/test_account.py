"""The report of a failed soak: for every process, its state and its place in the code."""

import os
import signal
from pathlib import Path
from typing import Any

from tests.conftest import Started
from tests.faults.account import SITE, account

BUSY = "import time\ndef at_work():\n    print('up', flush=True)\n    time.sleep(60)\nat_work()"


def test_each_process_is_named_with_its_state_and_writes_its_stacks(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    asked = {"PYTHONPATH": str(tmp_path), "RANK": "1"}
    nodes: list[Started] = [
        start("-c", BUSY, **asked),
        start("-c", BUSY, **asked),
        start("-c", BUSY, RANK="2"),
    ]
    for node in nodes:
        node.wait_for("up")
    nodes[1].process.send_signal(signal.SIGSTOP)
    os.waitpid(nodes[1].process.pid, os.WUNTRACED)  # until it has stopped
    hosts = {number: [node.process.pid] for number, node in enumerate(nodes)}
    busy, stopped, mute, gone = account(hosts | {3: []}).split("host ")[1:]
    assert f"0: rank 1, process {nodes[0].process.pid} of " in busy
    assert ", sleeping, in " in busy
    assert "in at_work" in nodes[0].read(nodes[0].stderr)
    assert ", stopped (cannot be asked for its stacks), in " in stopped
    assert "2: rank 2, process" in mute
    assert "cannot be asked" in mute
    assert gone == "3: no process"
