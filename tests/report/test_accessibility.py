"""A report for screen readers and the keyboard: axe-core (`make axe`) finds no serious fault."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.ranks import run_ranks
from tests.report.browser import PATH, Chromium, is_drawn
from trainer.report.history import read
from trainer.report.page.write import write

AXE = ROOT / "build/axe/node_modules/axe-core/axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not AXE.exists(), reason="no axe-core in build/axe; make axe brings it"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The report of a run with faults, attempts and a profile, and of six runs, by their number."""
    above = tmp_path_factory.mktemp("reports")
    runs = [above / f"lr{number}" for number in range(6)]
    run_ranks(2, runs[0], task="synthetic", steps="40", profile="11:13", eval_steps="10")
    events = (runs[0] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for number, run in enumerate(runs[1:], 1):
        run.mkdir()
        later = [json.loads(line) | {"lr": 0.01 * number} for line in events]
        text = "".join(f"{json.dumps(event)}\n" for event in later)
        (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    with (runs[0] / "metrics.jsonl").open("a", encoding="utf-8") as file:
        at = json.loads(events[-1])["time"]
        spent = {"compute_s": 8.0, "communication_s": 2.0, "own_s": 0.1}
        usage = [{"rank": rank, "memory": 1e9} | spent for rank in range(2)]
        for number in range(5):
            event = {"event": "usage", "time": at + number, "step": number, "ranks": usage}
            file.write(f"{json.dumps(event)}\n")
        fault = {"event": "fault", "time": at + 6, "kind": "straggler", "step": 40, "rank": 1}
        error = {"event": "error", "time": at + 7, "code": 70, "message": "ValueError: no"}
        file.write(f"{json.dumps(fault)}\n{json.dumps(error)}\n")
    pages = {}
    for count in (1, 6):
        pages[count] = above / f"{count}.html"
        write([read(run) for run in runs[:count]], pages[count])
    return pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        yield found


@pytest.mark.parametrize("count", [1, 6], ids=["one", "six"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("width", [320, 1400])
def test_axe_finds_no_serious_fault(
    browser: Chromium, reports: dict[int, Path], *, count: int, dark: bool, script: bool, width: int
) -> None:
    with browser.open(reports[count], width=width, dark=dark, script=script) as page:
        if script:
            is_drawn(page)
        page.call("Emulation.setScriptExecutionDisabled", value=False)  # for axe itself
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = json.loads(page.evaluate("axe.run().then((all) => JSON.stringify(all.violations))"))
    faults = {
        f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    }
    assert faults == set()
