"""A report in a headless Chromium: complete, offline, with and without its script."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.ranks import run_ranks
from tests.report.browser import PATH, Chromium, Page, is_drawn
from trainer.report.history import read
from trainer.report.page.write import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="no Chromium is installed"),
]

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        yield found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of two ranks that had a fault."""
    folder = tmp_path_factory.mktemp("report") / "digits"
    *events, last = run_ranks(2, folder, task="digits", epochs="3", checkpoint_steps="20")
    fault = {
        "event": "fault",
        "time": last["time"],
        "kind": "stopped",
        "checkpoint": f"/a{'/b' * 99}",
    }
    lines = [f"{json.dumps(event)}\n" for event in (*events, fault, last)]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    write([read(folder)], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of three runs with other settings."""
    above = tmp_path_factory.mktemp("reports")
    for lr in ("0.01", "0.03", "0.1"):
        run_ranks(1, above / f"lr{lr}", task="digits", epochs="3", lr=lr)
    write([read(folder) for folder in sorted(above.iterdir())], above / "report.html")
    return above / "report.html"


def inked(picture: Image.Image) -> float:
    """Return the share of pixels that do not have the most frequent colour."""
    colours = picture.getcolors(maxcolors=1 << 24) or []
    return 1 - max(count for count, _ in colours) / (picture.width * picture.height)


# The corners of every chart on the page, by the names of the figures.
CHARTS = """JSON.stringify(Object.fromEntries([...document.querySelectorAll("figure")].map(one => {
    const {left, top, right, bottom} = one.querySelector(".chart").getBoundingClientRect();
    return [one.id, [left, top + scrollY, right, bottom + scrollY].map(Math.round)];
})))"""


@pytest.mark.parametrize("width", [320, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_it_is_whole_at_any_width_in_dark_and_without_its_script(
    browser: Chromium, one: Path, *, width: int, dark: bool, script: bool
) -> None:
    with browser.open(one, width=width, dark=dark, script=script) as page:
        if script:
            is_drawn(page)
        charts = json.loads(page.evaluate(CHARTS))
        assert {"loss", "eval-accuracy", "lr", "grad_norm", "samples_per_s", "goodput"} <= {*charts}
        whole = page.picture("html")
        for name, box in charts.items():
            assert inked(whole.crop(box)) > 0.01, name
        overflow = "document.documentElement.scrollWidth - innerWidth"
        assert page.evaluate(overflow) <= 0
        corner = whole.getpixel((1, 1))
        assert (sum(corner) < 200) == dark  # type: ignore[arg-type]
        shown = page.evaluate("document.querySelectorAll('.control:not([hidden])').length")
        assert bool(shown) == script
        assert page.requests == [one.as_uri()]
        assert page.errors == []


# Of all elements that a selector finds, those for which a condition is false, as text.
NOT = """JSON.stringify([...document.querySelectorAll(%s)].filter(one => !(%s)).map(one =>
    [one.closest("figure")?.id, one.textContent]))"""
LEGENDS = "one.getBoundingClientRect().right <= one.closest('.chart').getBoundingClientRect().right"
IN_ONE_LINE = (
    "(range => (range.selectNodeContents(one), range.getClientRects().length))"
    "(document.createRange()) == 1"
)
LARGE = "one.getBoundingClientRect().height >= 7"


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("name", ["one", "several"])
def test_on_a_phone_figures_and_legends_are_whole_and_large_enough(
    browser: Chromium, request: pytest.FixtureRequest, *, name: str, script: bool
) -> None:
    with browser.open(request.getfixturevalue(name), width=320, script=script) as page:
        if script:
            is_drawn(page)
            assert page.evaluate(NOT % ("'.role-legend-label text'", LEGENDS)) == "[]"
        assert page.evaluate(NOT % ("'td.number'", IN_ONE_LINE)) == "[]"
        assert page.evaluate(NOT % ("'.chart text'", LARGE)) == "[]"


WIDE = "one.scrollWidth <= one.clientWidth"


def test_on_a_phone_no_table_and_no_long_name_is_cut_off(browser: Chromium, tmp_path: Path) -> None:
    metric = "validation/precision_macro_average_over_all_classes"
    refusal = f"checkpoint {tmp_path}/checkpoints/step-00000100 is of a run with other settings"
    lines: list[dict[str, Any]] = [
        {"event": "launch", "began": 0},
        {"event": "step", "step": 1000, "loss": 0.5, "seconds": 1},
        {"event": "eval", "step": 1000, "metric": metric, metric: 0.5},
        {"event": "error", "code": 64, "message": refusal},
    ]
    texts = [json.dumps(line | {"time": at}) for at, line in enumerate(lines, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(texts))
    write([read(tmp_path)], tmp_path / "report.html")
    with browser.open(tmp_path / "report.html", width=375) as page:
        is_drawn(page)
        assert page.evaluate(NOT % ("'.scroll, figcaption'", WIDE)) == "[]"


def test_on_paper_settings_are_shown_and_nothing_to_press_is(
    browser: Chromium, several: Path
) -> None:
    with browser.open(several, width=700) as page:
        is_drawn(page)
        page.call("Emulation.setEmulatedMedia", media="print")
        for selector, wanted in (("pre", "true"), (".control", "false")):
            each = f"[...document.querySelectorAll('{selector}')]"
            page.wait_for(f"{each}.every(one => one.checkVisibility() == {wanted})")
        assert page.evaluate(NOT % ("'.scroll'", WIDE)) == "[]"


def texts_of(selector: str) -> str:
    """Return a script whose value is the texts of the elements, as one string."""
    return f"[...document.querySelectorAll('{selector}')].map(one => one.textContent).join(' ')"


def move(page: Page, selector: str, kind: str = "mouseMoved", **more: Any) -> None:
    """Send the page a mouse event in the middle of an element."""
    found = f"document.querySelector('{selector}')"
    page.evaluate(f"{found}.scrollIntoView({{block: 'center'}})")
    script = f"JSON.stringify({found}.getBoundingClientRect())"
    box = json.loads(page.evaluate(script))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def test_a_chart_zooms_hovers_and_has_a_log_scale(browser: Chromium, one: Path) -> None:
    with browser.open(one) as page:
        is_drawn(page)
        linear = page.evaluate(texts_of("#loss .role-axis-label text"))
        page.evaluate("document.querySelector('#loss input.log').click()")
        page.wait_for("document.querySelector('#loss').dataset.drawn == 'log'")
        assert page.evaluate(texts_of("#loss .role-axis-label text")) != linear

        steps = texts_of("#lr .role-axis-label text")
        whole = page.evaluate(steps)
        move(page, "#lr .chart", "mouseWheel", deltaX=0, deltaY=-300, modifiers=1)  # Alt
        page.wait_for(f"{steps} != {json.dumps(whole)}")

        end = time.monotonic() + 20
        while not page.evaluate("!!document.querySelector('#vg-tooltip-element.visible')"):
            assert time.monotonic() < end
            for point in (4, 5):  # like a hand: a chart that is drawn again gets the next move
                move(page, f"#grad_norm .mark-symbol.role-mark path:nth-child({point})")
        assert "Gradient norm" in page.evaluate(texts_of("#vg-tooltip-element"))
        assert page.errors == []


def test_several_runs_show_what_differs_a_legend_and_a_table_that_sorts(
    browser: Chromium, several: Path
) -> None:
    with browser.open(several) as page:
        is_drawn(page)
        differing = "table:not(.sortable) tbody tr:first-child"
        expected = ["TRAINER_LR", "0.01", "0.03", "0.1"]
        assert page.evaluate(texts_of(f"main > div > {differing} > *")).split() == expected

        for reverse in (False, True):
            page.evaluate("document.querySelectorAll('table.sortable th button')[2].click()")
            text = page.evaluate(texts_of("table.sortable tbody td:nth-child(3)"))
            values = [float(value) for value in text.split()]
            assert len(set(values)) > 1
            assert values == sorted(values, reverse=reverse)

        faint = "document.querySelectorAll('#loss .mark-line path[opacity=\"0.1\"]').length"
        assert page.evaluate(faint) == 0
        for kind in ("mousePressed", "mouseReleased"):
            move(page, "#loss .role-legend-symbol path", kind, button="left", clickCount=1)
        page.wait_for(f"{faint} == 2")
        assert page.errors == []


def test_a_column_of_several_runs_has_one_metric(browser: Chromium, tmp_path: Path) -> None:
    for metric, value in {"accuracy": 0.5, "perplexity": 80}.items():
        (folder := tmp_path / metric).mkdir()
        event = {"event": "eval", "time": 1, "step": 1, "metric": metric, metric: value}
        (folder / "metrics.jsonl").write_text(json.dumps(event))
    write([read(tmp_path / name) for name in ("accuracy", "perplexity")], tmp_path / "report.html")
    with browser.open(tmp_path / "report.html") as page:
        head = page.evaluate(texts_of("table.sortable th:nth-child(3)"))
        assert (head, page.evaluate(texts_of("table.sortable td:nth-child(3)"))) == (
            "accuracy",
            "0.5 -",
        )


def write_long_run(folder: Path) -> None:
    """Write 100,000 steps of eight ranks, with every figure that a run can have and one peak."""
    figures = ("loss", "grad_norm", "lr", "memory", "samples_per_s", "tokens_per_s", "flops_per_s")
    metrics = ("accuracy", "top5", "perplexity", "f1")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, 100_001):
            noise = step * 7919 % 1000 / 1000
            event: dict[str, Any] = {"event": "step", "time": step, "step": step, "seconds": 1}
            event |= {"steps": 100_000, "peak_share": noise, **dict.fromkeys(figures, 3 + noise)}
            event |= {"loss": 1234.5} if step == 70_001 else {}
            found = [event]
            if step % 100 == 0:
                scored = {"event": "eval", "metric": "accuracy", **dict.fromkeys(metrics, noise)}
                used = [{"rank": rank, "memory": 1e9 * noise, "own_s": noise} for rank in range(8)]
                found += [scored, {"event": "checkpoint", "action": "saved"}]
                found += [{"event": "usage", "ranks": used}]
            for one in found:
                file.write(f"{json.dumps(one | {'time': step, 'step': step})}\n")


def test_a_run_of_100_000_steps_is_small_opens_and_keeps_its_peak(
    browser: Chromium, tmp_path: Path
) -> None:
    write_long_run(tmp_path)
    path = tmp_path / "report.html"
    write([read(tmp_path)], path)
    assert path.stat().st_size < 1_500_000
    with browser.open(path) as page:
        is_drawn(page)
        assert len(json.loads(page.evaluate(CHARTS))) == 16
        assert "highest 1,234 at step 70,001" in page.evaluate(texts_of("#loss .words"))
        assert "1,200" in page.evaluate(texts_of("#loss .role-axis-label text"))
        assert page.errors == []


def test_a_curve_that_stays_at_one_value_has_this_value_at_its_axis(
    browser: Chromium, tmp_path: Path
) -> None:
    steps = [{"event": "step", "time": at, "step": at, "lr": 0.03} for at in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    write([read(tmp_path)], tmp_path / "report.html")
    with browser.open(tmp_path / "report.html") as page:
        is_drawn(page)
        assert "0.03" in page.evaluate(texts_of("#lr .role-axis-label text"))
        assert page.errors == []


def test_what_a_stranger_wrote_is_text(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lines: list[dict[str, Any]] = [
        {"event": "launch", "began": 0, "task": HOSTILE, "settings": {HOSTILE: HOSTILE}},
        {"event": "step", "step": 1, "loss": 0.5, "seconds": 1},
        {"event": "step", "step": 2, "loss": 0.25, "seconds": 1},
        {"event": "eval", "step": 2, "metric": HOSTILE, HOSTILE: 0.5, "loss": 1},
        {"event": "fault", "kind": HOSTILE, "step": 2, HOSTILE: HOSTILE},
        {"event": "error", "code": 70, "message": HOSTILE},
    ]
    texts = [json.dumps(line | {"time": at}) for at, line in enumerate(lines, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(texts))
    run = read(folder)
    run.name = HOSTILE
    other = read(folder)
    for number, runs in enumerate(([run], [run, other])):
        path = tmp_path / f"{number}.html"
        write(runs, path)
        with browser.open(path) as page:
            is_drawn(page)
            assert page.evaluate("document.querySelectorAll('img').length") == 0
            assert page.evaluate("document.querySelectorAll('script').length") == 2
            assert HOSTILE in page.evaluate("document.querySelector('main').textContent")
            assert page.requests == [path.as_uri()]
            assert page.errors == []
