"""The benchmark: real contenders take turns, and a spread that is too wide gives no verdict."""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.bench import __main__ as bench
from tests.bench import commands, growth, page
from tests.bench.measure import (
    SCRIPTS,
    Contender,
    Times,
    Took,
    each_in_turn,
    in_turn,
    ratio,
    to_end,
    until_line,
)
from tests.bench.rows import ROWS, Row


@pytest.mark.parametrize(
    ("found", "spread", "said"),
    [
        (1.0, 0.02, "met"),
        (1.1, 0.02, "not met"),
        (1.0, 0.2, "none: spread too wide"),
        (0.5, 0.2, "met"),
        (1.5, 0.2, "not met"),
        (1.1, 0.2, "none: spread too wide"),
    ],
)
def test_a_wide_spread_gives_no_verdict(found: float, spread: float, said: str) -> None:
    assert bench.verdict(found, spread, goal=1.03) == said


def test_what_has_no_goal_is_published() -> None:
    assert bench.verdict(2.0, 0.01, goal=None) == "published"


def test_a_ratio_is_that_of_each_round() -> None:
    """If the machine is slower in one round, it is slower for both."""
    assert ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == (2.0, 0.0)
    middle, spread = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert middle == 3
    assert spread == pytest.approx(2 / 3)


def test_the_table_and_the_file_have_every_ratio(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    times = {"muster": [Took(1.0, 2.0, 3, 8)] * 3, "bare": [Took(1.0, 1.0, 2, 2)] * 3}
    row = Row("a row", lambda _: times, {"bare": 1.03})
    monkeypatch.setitem(ROWS, "step", row)
    monkeypatch.setitem(ROWS, "start-1", replace(row, measure=lambda _: dict[str, Any]()["failed"]))
    monkeypatch.setattr("sys.argv", ["bench", "step", "start-1", "--folder", str(tmp_path)])
    with pytest.raises(KeyError, match="failed"):
        bench.main()
    line = "\n| step | bare | 1.00 (0%) | 2.00 (0%) | 1.50 | 4.00 | 1.03 | met |\n"
    assert line in capsys.readouterr().out
    (file,) = tmp_path.iterdir()
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["rows"]["step"]["ratios"]["bare"]["wall"] == 2
    assert result["rows"]["step"]["starts"] == 1  # the first pass failed
    assert {"date", "machine", "versions"} < result.keys()


@pytest.mark.parametrize(("rounds", "shares"), [(7, (2, 2, 1, 1, 1)), (2, (1, 1))])
def test_each_pass_over_the_rows_takes_its_share_of_the_rounds(
    rounds: int, shares: tuple[int, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    """A machine's speed lasts for minutes: what is measured in one minute has only one."""
    asked: list[tuple[str, int]] = []

    def measure(name: str) -> Callable[[int], Times]:
        def of_row(rounds: int) -> Times:
            asked.append((name, rounds))
            took = [Took(len(asked), 1.0)] * rounds
            return {"muster": took, "bare": took}

        return of_row

    for name in ("step", "ddp"):
        monkeypatch.setitem(ROWS, name, Row("a row", measure(name), {"bare": None}))
    options = ("step", "ddp", "--rounds", str(rounds), "--folder", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["bench", *options])
    bench.main()
    assert asked == [(name, share) for share in shares for name in ("step", "ddp")]
    (file,) = tmp_path.iterdir()
    row = json.loads(file.read_text(encoding="utf-8"))["rows"]["ddp"]
    assert row["starts"] == len(shares)
    passes = [2 * number + 2 for number, share in enumerate(shares) for _ in range(share)]
    assert [took["cpu"] for took in row["times"]["muster"]] == passes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("stepp",), "no row stepp; there are step,"),
        (("--rounds", "0"), "--rounds 0: wanted 1 or more"),
    ],
)
def test_refuses_what_it_cannot_measure(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *options, "--folder", str(tmp_path / "new")])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("warm_up", [0, 1])
def test_rounds_to_warm_up_do_not_count(warm_up: int) -> None:
    calls = count()
    times = each_in_turn({"one": lambda: Took(next(calls), 0.0)}, rounds=2, warm_up=warm_up)
    assert [took.cpu for took in times["one"]] == [warm_up, warm_up + 1]


@pytest.mark.slow
def test_a_loop_takes_its_steps_when_asked_and_is_started_again(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"open({str(begun)!r}, 'a').write('x'); import runpy; runpy.run_module('bare')"
    bare = Contender(("-c", code), {"BENCH_STEPS": "3"})
    times = in_turn({"one": bare}, rounds=3, starts=2)
    assert begun.read_text(encoding="utf-8") == "xx"
    assert len(times["one"]) == 3
    assert all(took.cpu > 0 and took.wall > 0 for took in times["one"])
    assert all(took.peak >= took.memory > 1e7 for took in times["one"])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("reading", "tokens"), ("saving", "load")])
def test_the_trainers_parts_take_turns_too(arguments: tuple[str, str]) -> None:
    script, what = arguments
    one = Contender((str(SCRIPTS / f"{script}.py"), what, "muster"), {"BENCH_STEPS": "1"})
    assert in_turn({"one": one}, rounds=1)["one"][0].cpu > 0


@pytest.mark.slow
def test_work_that_goes_on_after_a_turn_is_waited_for_and_not_counted() -> None:
    code = "from turn import Turns; import time; turns = Turns()\nwhile 1: turns.step(rest=rest)"
    one = Contender(("-c", f"rest = lambda: time.sleep(0.5); {code}"), {"BENCH_STEPS": "1"})
    began = time.perf_counter()
    took = in_turn({"one": one}, rounds=3)["one"]
    assert max(each.wall for each in took) < 0.2
    assert time.perf_counter() - began > 1.5


@pytest.mark.slow
def test_a_time_may_begin_with_a_line() -> None:
    code = "import time; print('go', flush=True); time.sleep(5); print('in', flush=True); time.sleep(9)"
    began = Contender(("-c", f"import time; print('in', flush=True); time.sleep(1); {code}"))
    assert until_line(began, "in").wall < 4
    assert 4 < until_line(began, "in", after="go").wall < 9


@pytest.mark.slow
def test_a_contender_that_fails_is_shown() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        in_turn({"one": Contender(("-c", "raise SystemExit('broken')"))}, rounds=1)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl")
def test_status_is_compared_with_kubectl() -> None:
    times = commands.status(1)
    assert [len(took) for took in times.values()] == [1, 1]


def test_the_pages_table_is_that_of_the_newest_runs() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.table(page.newest(), page.reasons(text)) in text


def test_the_page_says_why_a_goal_is_not_met() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| `.*\| (?:no|open) \| *\|$", text, re.MULTILINE) == []


def of_step(ratios: list[float], *, cpu: float = 1.0, spread: float = 0.05) -> dict[str, Any]:
    """Return a run with one row, in whose rounds muster took these shares of the peer's time."""
    peer = {"cpu": cpu, "cpu_spread": spread, "memory": 1.5, "goal": 1.03}
    times = {"muster": [{"cpu": one} for one in ratios], "bare": [{"cpu": 1.0}] * len(ratios)}
    row = {"starts": 3, "ratios": {"bare": peer}, "times": times}
    return {"date": "2026-01-01T10:20:30", "rows": {"step": row}}


def test_runs_agree_within_their_largest_spread() -> None:
    runs = [of_step([1.0] * 3, cpu=1.0), of_step([1.0] * 3, cpu=1.05, spread=0.01)]
    row = page.table(runs, {("step", "bare"): "clipping"}).splitlines()[-1]
    wanted = (
        "| `step` | bare | 1.00, 1.05 | 5% | yes | 1.00 to 1.00 | 1.50 | 1.03 | yes | clipping |"
    )
    assert row == wanted
    apart = page.table([runs[0], of_step([1.0] * 3, cpu=1.06)], {}).splitlines()[-1]
    assert "1.00, 1.06 | 5% | no |" in apart


def test_the_interval_is_from_the_third_of_twelve_starts_to_the_tenth() -> None:
    runs = [of_step([one, one + 1, one + 2]) for one in (1.0, 4.0, 7.0, 10.0)]
    assert page.interval(runs, "step", "bare") == (3.0, 10.0)


@pytest.mark.parametrize(
    ("medians", "met"),
    [
        ([0.9] * 8 + [9.0], "yes"),
        ([0.9] * 7 + [9.0] * 2, "open"),
        ([9.0] * 7 + [0.9] * 2, "open"),
        ([9.0] * 8 + [0.9], "no"),
    ],
)
def test_a_goal_is_met_if_at_most_one_start_of_nine_says_otherwise(
    medians: list[float], met: str
) -> None:
    # Of the five rounds of a run, its starts have two, two and one.
    runs = [
        of_step([one, one, two, two, three])
        for one, two, three in zip(medians[::3], medians[1::3], medians[2::3], strict=True)
    ]
    assert page.table(runs, {}).splitlines()[-1].endswith(f"| {met} |  |")


def test_what_grows_with_its_size_is_ten_and_worse_is_more() -> None:
    assert growth.by_the_one_before([1.0, 2.0, 11.0]) == "10.0"
    assert growth.by_the_one_before([1.0, 2.0, 101.0]) == "100.0"
    assert growth.by_the_one_before([1.0, 2.0]) == ""


@pytest.mark.slow
def test_each_growth_can_be_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = growth.GROWTHS["runs"].prepare(100, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert to_end(command).cpu > 0
    assert growth.seconds(growth.GROWTHS["files"], 10) > 0
