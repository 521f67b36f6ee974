"""Alerts and dashboard of a job file's `metrics`: with promtool, and with Prometheus on a real run."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.plan.monitoring import dashboard, rules
from tests.conftest import QUICK
from tests.ranks import free_port
from trainer.report.live import figures

pytestmark = pytest.mark.slow

JOB = 'app_kubernetes_io_instance="digits",namespace="lab"'
NEEDS = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="no promtool and prometheus are installed",
)

HOURS = 3 * 60  # minutes of each series below


def line(value: str) -> str:
    return f"{value}x{HOURS}"


def series(name: str, values: str, more: str = "") -> dict[str, str]:
    return {"series": f"{name}{{{JOB}{more}}}", "values": values}


STRAGGLER = ',kind="straggler"'
NONFINITE = ',kind="nonfinite"'

# By the alert: series, one value a minute, with which it fires after three hours, and with which not.
# A time is written as the minutes since it was, 60 seconds each.
ALERTS: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "MusterNoStep": (
        [series("muster_last_step_time_seconds", line("0+0"))],
        [series("muster_last_step_time_seconds", line("0+60"))],
    ),
    "MusterStraggler": (
        [series("muster_faults_total", f"{'0 ' * (HOURS - 10)}1x20", STRAGGLER)],
        [series("muster_faults_total", line("1+0"), STRAGGLER)],  # it was, long ago
    ),
    "MusterNonfinite": (
        [series("muster_faults_total", f"{'0 ' * (HOURS - 10)}4x20", NONFINITE)],
        [series("muster_faults_total", f"{'0 ' * (HOURS - 10)}1x20", NONFINITE)],
    ),
    "MusterCheckpointOld": (
        [series("muster_last_saved_time_seconds", line("0+0"))],
        [series("muster_last_saved_time_seconds", line("0+60"))],
    ),
    "MusterGoodputLow": (
        [series("muster_goodput", line("0.4+0")), series("muster_wall_seconds", line("0+60"))],
        [series("muster_goodput", line("0.4+0")), series("muster_wall_seconds", line("0+1"))],
    ),
    "MusterRestarts": (
        [series("muster_attempt", f"{'1 ' * (HOURS - 40)}2x10 3x10 5x30")],
        [series("muster_attempt", f"{'1 ' * (HOURS - 40)}2x60")],
    ),
    "MusterDiskFull": (
        [series("muster_disk_free_bytes", line("5+0")), series("muster_disk_bytes", line("100+0"))],
        [
            series("muster_disk_free_bytes", line("50+0")),
            series("muster_disk_bytes", line("100+0")),
        ],
    ),
    "MusterJobGone": (
        [
            series("muster_step", f"{'7 ' * (HOURS - 30)}stale"),
            series("muster_steps", f"{'9 ' * (HOURS - 30)}stale"),
        ],
        [
            series("muster_step", f"{'9 ' * (HOURS - 30)}stale"),  # it was done
            series("muster_steps", f"{'9 ' * (HOURS - 30)}stale"),
        ],
    ),
}


def test_every_alert_is_in_the_table() -> None:
    assert {rule["alert"] for rule in rules("digits", "lab")} == ALERTS.keys()


def promtool(folder: Path, test: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    written = {"groups": [{"name": "digits", "rules": rules("digits", "lab")}]}
    (folder / "rules.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    (folder / "test.yaml").write_text(
        yaml.safe_dump(
            {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
        ),
        encoding="utf-8",
    )
    command = ["promtool", "test", "rules", "test.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@NEEDS
@pytest.mark.parametrize("fires", [True, False])
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_when_it_should_and_not_else(
    alert: str, *, fires: bool, tmp_path: Path
) -> None:
    rule = next(one for one in rules("digits", "lab") if one["alert"] == alert)
    found = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    asked = {"eval_time": f"{HOURS - 1}m", "alertname": alert, "exp_alerts": [found] * fires}
    test = {"interval": "1m", "input_series": ALERTS[alert][not fires], "alert_rule_test": [asked]}
    done = promtool(tmp_path, test)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS
def test_promtool_finds_nothing_wrong_with_the_rules(tmp_path: Path) -> None:
    written = {"groups": [{"name": "digits", "rules": rules("digits", None)}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    command = ["promtool", "check", "rules", "rules.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def queries() -> dict[str, str]:
    """Return every query of rules and dashboard, by its purpose."""
    found = {rule["alert"]: rule["expr"] for rule in rules("digits", "lab")}
    for panel in json.loads(dashboard("digits", "lab"))["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']}: {target['legendFormat']}"] = target["expr"]
    return found


def test_every_query_is_of_the_job_alone_and_of_figures_that_are_served() -> None:
    served = {one.name for one in figures.FIGURES} | {name for name, _ in figures.DISK}
    served |= {
        one[0] for one in (figures.EVALUATION, figures.SPENT, figures.CHECKPOINTS, figures.FAULTS)
    }
    served |= {"process_resident_memory_bytes"}
    for about, query in queries().items():
        named = re.findall(r"\b(?:muster|process)_\w+", query)
        assert set(named) <= served, about
        assert query.count('app_kubernetes_io_instance="digits"') == len(named), about
        assert "$" not in query


def lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """Return the places of what one value has and the other lacks; the other may have more."""
    if isinstance(given, dict):
        held = kept if isinstance(kept, dict) else {}
        return [one for key in given for one in lost(given[key], held.get(key), f"{at}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [one for number, pair in pairs for one in lost(*pair, f"{at}[{number}]")]
    return [] if given == kept else [at]


def test_grafana_s_own_classes_know_all_that_the_dashboard_says() -> None:
    """They leave out what their schema does not have."""
    parts = ("cog.plugins", "cog.encoder", "models.dashboard")
    plugins, encoder, models = (
        pytest.importorskip(f"grafana_foundation_sdk.{part}") for part in parts
    )
    plugins.register_default_plugins()
    board = json.loads(dashboard("digits", "lab"))

    def unknown() -> list[str]:
        theirs = models.Dashboard.from_json(board)
        return lost(board, json.loads(encoder.JSONEncoder().encode(theirs)))

    assert unknown() == []
    board["panels"][0]["targets"][0]["legend"] = "no field of theirs"
    assert unknown() == [".panels[0].targets[0].legend"]


@contextmanager
def scraping(folder: Path, target: int) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes a port here each second."""
    port = free_port()
    labels = {"app_kubernetes_io_instance": "digits", "namespace": "lab", "pod": "digits-0"}
    job = {
        "job_name": "run",
        "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": labels}],
    }
    written = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(written), encoding="utf-8")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def ask(address: str, query: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  # our own
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


@NEEDS
def test_the_queries_have_answers_in_a_prometheus_that_scrapes_a_run(
    start: Any, tmp_path: Path
) -> None:
    port = free_port()
    more = {
        "TRAINER_STEPS": "1000000",
        "TRAINER_CHECKPOINT_STEPS": "200",
        "TRAINER_EVAL_STEPS": "100",
    }
    place = {"TRAINER_OUT": str(tmp_path / "run"), "TRAINER_METRICS_PORT": str(port)}
    run = start("-m", "trainer", **(QUICK | more | place))
    run.wait_for('"event": "eval"')
    with scraping(tmp_path, port) as address:
        end = time.monotonic() + 90
        panels = {about: query for about, query in queries().items() if ": " in about}
        while missing := [about for about, query in panels.items() if not _has(address, query)]:
            assert time.monotonic() < end, missing
            time.sleep(0.5)
        (step,) = ask(address, f"max(muster_step{{{JOB}}})")
        assert float(step["value"][1]) > 100
        # In a healthy run no alert fires, but each would with a limit that is exceeded.
        exprs = {rule["alert"]: rule["expr"] for rule in rules("digits", "lab")}
        # The disk depends on this machine, so only the value that is compared with the limit is read.
        (free,) = ask(address, exprs.pop("MusterDiskFull").removesuffix(" < 0.1"))
        disk = shutil.disk_usage(tmp_path)
        assert float(free["value"][1]) == pytest.approx(disk.free / disk.total, abs=0.02)
        for alert, expr in exprs.items():
            assert ask(address, expr) == [], alert
            if "<" not in expr and alert != "MusterRestarts":
                assert ask(address, re.sub(r"> \d+$", "> -1", expr)), alert


def _has(address: str, query: str) -> bool:
    try:
        return bool(ask(address, query))
    except OSError:
        return False
