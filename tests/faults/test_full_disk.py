"""A disk that is really full causes a warning and another attempt; no run or checkpoint is lost."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from tests.faults.tasks import planted
from tests.ranks import run_ranks
from trainer.checkpoint.find import complete
from trainer.engine import ledger
from trainer.report.live.record import to_file

pytestmark = pytest.mark.slow

TRAINED = {
    "task": "tests.faults.tasks:Filling",
    "preflight": "off",
    "checkpoint_steps": "4",
    "eval_steps": "0",
}


def test_a_full_disk_costs_warnings_and_lines_but_no_checkpoint(
    start: Any, tiny_disk: Path
) -> None:
    run = tiny_disk / "run"
    variables = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()}
    variables |= {"TRAINER_STEPS": "18", "TRAINER_OUT": str(run), "FILLED": str(tiny_disk)}
    # enough samples that the ledger needs another page before there is room again
    variables |= {"TRAINER_LEDGER": "true", "TRAINER_GLOBAL_BATCH": "256"}
    variables |= {"TRAINER_LOG_STEPS": "100"}  # events would use the room for the checkpoint
    ended = start("-m", "trainer", **(QUICK | variables), PYTHONPATH=str(ROOT)).end()
    assert ended.code == 0, ended.stderr
    saves = [(event["step"], event["action"]) for event in ended.of("checkpoint")]
    assert saves == [(4, "saved"), (8, "refused"), (12, "refused"), (16, "saved"), (18, "saved")]
    reasons = [event["message"] for event in ended.of("checkpoint") if "message" in event]
    assert reasons[0].endswith("bytes needed, 0 free"), reasons
    assert reasons[1].endswith("No space left on device"), reasons
    assert f"going on, the newest complete one is {run}/checkpoints/step-00000004" in ended.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-00000004",
        "step-00000016",
        "step-00000018",
    ]
    assert complete(str(run / "checkpoints/step-00000004")).manifest.progress.step == 4
    # the ledger ends with a complete line where there was no room
    assert ended.stderr.count("rank0.jsonl: No space left on device; the run goes on") == 1
    assert 5 <= len(ledger.read(run).steps) < 10


def test_events_without_room_are_missing_and_no_others_are_torn(
    tiny_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tiny_disk / "metrics.jsonl"
    with to_file(file) as write:
        write({"number": 0})
        with contextlib.suppress(OSError):
            (tiny_disk / "ballast").write_bytes(bytes(2**21))
        for number in range(1, 1000):  # there is room in the file's own page
            write({"number": number})
        (tiny_disk / "ballast").unlink()
        write({"number": 1000})
    assert caplog.text.count(f"{file}: No space left on device; events are missing there") == 1
    *_, before, torn, last = file.read_text(encoding="utf-8").splitlines()
    assert json.loads(last) == {"number": 1000}
    assert f'{{"number": {json.loads(before)["number"] + 1}}}'.startswith(torn)


SPEAKING = """
import sys
from pathlib import Path
from trainer.launcher.output.log_file import log_to_file
with log_to_file(Path("logs")) as log:
    for number in range(3000):
        print(number)
        print(number, file=sys.stderr)
print(log.stat().st_size)
"""


def test_a_full_disk_ends_the_log_and_not_the_run(start: Any, tiny_disk: Path) -> None:
    with contextlib.suppress(OSError):
        (tiny_disk / "ballast").write_bytes(bytes(2**20 - 3 * 4096))
    process = start("-c", SPEAKING.replace('"logs"', repr(str(tiny_disk))), PYTHONPATH=str(ROOT))
    assert process.process.wait(20) == 0
    *lines, size = process.read(process.out).splitlines()
    assert lines == [str(number) for number in range(3000)]
    assert 0 < int(size) < 2**15
    text = process.read(process.stderr)
    (warning,) = re.findall("launch: .*: No space left on device; its log is incomplete\n", text)
    assert text.replace(warning, "").splitlines() == lines


@pytest.mark.parametrize("ranks", [1, 2])
def test_at_the_end_there_is_no_next_attempt_so_it_is_71(
    ranks: int, tiny_disk: Path, tmp_path: Path
) -> None:
    plant = planted(FILLED=str(tiny_disk))
    elsewhere = TRAINED | {"checkpoints": str(tiny_disk / "run/checkpoints")}
    events = run_ranks(ranks, tmp_path / "run", plant, code=71, steps="9", **elsewhere)
    assert "the newest complete one is" in events[-1]["message"]
    (tiny_disk / "ballast").unlink()
    resumed = run_ranks(ranks, tmp_path / "run", plant, steps="9", **elsewhere)[len(events) :]
    assert [event["step"] for event in resumed if event.get("action") == "resumed"] == [4]
