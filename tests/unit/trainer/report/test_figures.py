"""What Prometheus reads from a program, with its own parser: equal to what the trainer serves."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trainer.report.events import scores
from trainer.report.live.figures import FIGURES, Figures, as_text
from trainer.report.prometheus import _Collector

AWKWARD = 'a "b" \\ \n c é'


def samples(text: str) -> dict[str, float]:
    found = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {" ".join([one.name, *one.labels.values()]): one.value for one in found}


def test_both_servers_say_the_same(tmp_path: Path) -> None:
    figures = Figures(tmp_path)
    for event in ("launch", "step", "eval", "checkpoint", "usage"):
        fields = {one.field: 1.5 for one in FIGURES if one.event == event}
        figures.take({"event": event, "action": "saved", AWKWARD: 0.25, **fields})
    figures.take({"event": "fault", "kind": AWKWARD})
    figures.take({"event": "step", "spent_s": {"start": 2.0, AWKWARD: 0.5, "data": "much"}})
    seen = samples(as_text(figures.families()))
    assert {one.name for one in FIGURES} <= seen.keys()
    assert seen[f"muster_eval_metric {AWKWARD}"] == 0.25
    assert seen[f"muster_faults_total {AWKWARD}"] == 1
    assert seen[f"muster_spent_seconds {AWKWARD}"] == 0.5
    assert (seen["muster_spent_seconds start"], "muster_spent_seconds data" in seen) == (2.0, False)
    registry = CollectorRegistry()
    registry.register(_Collector(figures))
    theirs = samples(generate_latest(registry).decode())
    assert theirs.keys() == seen.keys()
    changing = {"muster_disk_free_bytes"}
    assert {k: v for k, v in theirs.items() if k not in changing} == {
        k: v for k, v in seen.items() if k not in changing
    }


def test_what_is_no_figure_is_left_out_and_labels_are_bounded(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "none")
    figures.take(
        {"event": "step", "step": "many", "loss": None, "lr": float("nan"), "samples": 10**400}
    )
    for number in range(1000):
        figures.take({"event": "eval", f"score {number}": 1, "text": "x"})
        figures.take({"event": "fault", "kind": f"kind {number}"})
        figures.take({"event": "checkpoint", "action": f"action {number}"})
    names = [name for name in samples(as_text(figures.families())) if name.startswith("muster_")]
    assert len(names) == 150
    assert "muster_step" not in names


def test_only_what_a_program_measures_is_a_score() -> None:
    event = {
        "event": "eval",
        "time": 1.0,
        "step": 9,
        "steps": 10,
        "epoch": 2,
        "lr": 0.1,
        "loss": 3.0,
    }
    assert scores({**event, "accuracy": 0.9}) == {"accuracy": 0.9}
