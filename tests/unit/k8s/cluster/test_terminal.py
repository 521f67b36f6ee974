"""Text from pods and the cluster is escaped for the terminal; `--json` and `--save` keep it as it is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_objects import JOBSET, Cluster, Run, jobset, pod
from tests.standin.server import Server

# Set the window's title and the clipboard, overwrite a line; the same with C1 codes.
ESCAPES = [
    "\x1b]0;owned\x07",
    "\x1b]52;c;cm0gLXJm\x1b\\",
    "\x1b[2K\x1b[1A",
    "\x9b2J\x9d0;owned\x9c",
]
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def hostile(server: Server, escape: str) -> None:
    """Create a failed job whose condition, pods, events and logs have `escape`."""
    reason = {"reason": escape, "message": f"a {escape} b"}
    server.put(*JOBSET, jobset(conditions=[{"type": "Failed", "status": "True", **reason}]))
    states: list[dict[str, Any]] = [{"waiting": reason}, {"terminated": {"exitCode": 1, **reason}}]
    for node, state in enumerate(states):
        name = f"digits-node-0-{node}"
        status = {"name": "trainer", "restartCount": 0, "state": state}
        one = pod(name, node, phase="Failed", containerStatuses=[status], **reason)
        one["spec"]["nodeName"] = f"machine{escape}"
        server.put("v1", "Pod", one)
        step = {"event": "step", "step": 1, "steps": 2, "loss": escape, "samples_per_s": escape}
        fault = {"event": "fault", "code": 65, "error": f"e {escape} f", "rank": 0}
        lines = [f"launch: {escape}", json.dumps(step), json.dumps(fault), f"[rank 0] {escape}x"]
        server.logs[name] = "\n".join([*lines, ""])
    event = {
        "metadata": {"name": "digits.1"},
        "type": "Warning",
        "reason": escape,
        "message": f"g {escape} h",
        "involvedObject": {"name": "digits-node-0-1"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    server.put("v1", "Event", event)


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize(
    "verb",
    [
        ["status", "digits"],
        ["logs", "digits"],
        ["list"],
        ["why", "digits"],
        ["top", "digits"],
        ["wait", "digits"],
    ],
    ids=lambda verb: verb[0],
)
def test_no_verb_shows_what_a_terminal_obeys(
    verb: list[str], escape: str, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    hostile(server, escape)
    _, out, err = run(config, *verb)
    assert not OBEYED.search(out + err)
    assert verb[0] in ("list", "top") or repr(escape)[1:6] in out + err


def test_json_and_saved_files_are_exact(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    server, config = cluster
    hostile(server, ESCAPES[0])
    shown = run(config, "status", "digits", "--json")[1]
    assert not OBEYED.search(shown)  # JSON escapes it
    assert ESCAPES[0] in "".join(json.loads(shown)["warnings"])
    run(config, "logs", "digits", "--save", str(tmp_path / "kept"))
    kept = [path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert any(f"launch: {ESCAPES[0]}\n".encode() in one for one in kept)
