"""The mode that `auto` chooses by a device's memory, and how all ranks agree on it."""

import contextlib
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.config.environment import parse, variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan import auto, memory
from trainer.plan.auto import Choice
from trainer.plan.sizing import Sizing, size

COMMON = {"task": "charlm-gpt", "optimizer": "adamw", "global_batch": "8"}


def settings_for(mebibytes: float | None = None, **written: str) -> Settings:
    known = {} if mebibytes is None else {"device_memory": str(mebibytes / 1024)}
    return parse(COMMON | known | written, label=variable)


def sized(settings: Settings, world_size: int = 8) -> Sizing:
    return size(settings, world_size, label=variable)


def chosen(folder: Path, settings: Settings) -> dict[str, Any]:
    from trainer.tools.dry_run import run

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(settings.model_copy(update={"out": folder, "log": "json"}), 8) == 0
    event: dict[str, Any] = json.loads(printed.getvalue())
    return event


# A replica holds 7.2 MiB and 1.5 MiB of activations and buffers, AdamW's state is half of it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mebibytes", "mode"), [(81920, "ddp"), (12, "ddp"), (8, "ddp-zero1"), (6, "fsdp"), (1, "fsdp")]
)
def test_auto_takes_the_simplest_mode_that_fits(mebibytes: int, mode: str, tmp_path: Path) -> None:
    event = chosen(tmp_path, settings_for(mebibytes))
    assert event["mode"] == mode
    assert f"{mode} needs {event['peak'] / 2**20:.1f} MiB" in event["reason"]
    assert (event["peak"] <= 0.9 * mebibytes * 2**20) == (mebibytes != 1)
    assert ("not even that fits" in event["reason"]) == (mebibytes == 1)


@pytest.mark.slow
def test_a_task_of_your_own_is_sized_as_well(tmp_path: Path) -> None:
    event = chosen(tmp_path, settings_for(4, task="tests.parity.tasks:Gpt"))
    assert event["mode"] == "ddp"
    assert event["parameters"] > 0
    assert "ddp needs" in event["reason"]


@pytest.mark.parametrize(
    ("written", "world_size", "mode"),
    [
        ({"mode": "ddp"}, 8, "ddp"),
        ({"mesh": "dp_shard=8"}, 8, "fsdp"),
        ({}, 1, "single"),
    ],
)
def test_auto_chooses_only_where_it_is_free(
    written: dict[str, str], world_size: int, mode: str
) -> None:
    settings = settings_for(1, **written)
    sizing = sized(settings, world_size)
    assert sizing.mode == mode
    assert not auto.is_open(settings, sizing)
    assert auto.choose_on_node(settings, [sizing]) is None


def no_dry_run(*_: object, **__: object) -> memory.DryRun:
    raise AssertionError("a dry run was started")


def test_without_known_memory_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "dry_run", no_dry_run)
    monkeypatch.setattr(auto, "_DEVICE_FILES", ("no-such-device",))
    settings = settings_for()
    assert auto.choose_on_node(settings, [sized(settings)]) is None
    assert taken(settings, Store()).mode == "ddp"


class Store(dict[str, bytes]):
    """The methods of torch's store that are used."""

    def set(self, key: str, value: str, /) -> None:
        self[key] = value.encode()

    def get(self, key: str, /) -> bytes:  # type: ignore[override]
        while key not in self:
            time.sleep(0.001)
        return self[key]


def taken(settings: Settings, store: Store, *, rank: int = 0) -> Sizing:
    return auto.agree(settings, sized(settings), store, rank=rank, device_bytes=None, uneven=False)


def test_an_elastic_job_is_decided_by_its_fewest_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def choose(_: Settings, sizing: Sizing) -> Choice:
        asked.append(sizing.world_size)
        return Choice("fsdp", "auto: as planted")

    monkeypatch.setattr(auto, "choose", choose)
    settings = settings_for(1)
    sizings = [sized(settings, ranks) for ranks in (1, 2, 4)]
    assert auto.choose_on_node(settings, sizings) == Choice("fsdp", "auto: as planted")
    assert asked == [2]


def test_all_ranks_take_what_the_first_ones_launcher_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "dry_run", no_dry_run)
    settings, store, found = settings_for(1), Store(), []
    other = threading.Thread(target=lambda: found.append(taken(settings, store, rank=1)))
    other.start()
    variables = auto.as_variable(Choice("fsdp", "auto: as planted"))
    monkeypatch.setenv(*variables.popitem())
    found.append(taken(settings, store))
    other.join(10)
    assert [(one.mode, one.reason, one.mesh["dp_shard"]) for one in found] == [
        ("fsdp", "auto: as planted", 8)
    ] * 2


def test_without_a_launcher_the_first_rank_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(auto.VARIABLE, raising=False)
    need = memory.Need(0, 1, 1, 1, 0, 1, 4, {})
    ran = memory.DryRun("ddp-zero1", "auto: as measured", [need])
    monkeypatch.setattr(memory, "dry_run", lambda *_, **__: ran)
    sizing = taken(settings_for(1), Store())
    assert (sizing.mode, sizing.reason) == ("ddp-zero1", "auto: as measured")


def test_a_dry_run_that_fails_costs_the_choice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> memory.DryRun:
        raise Fault(Exit.CODE, "the dry run did not finish within 120 s")

    monkeypatch.setattr(memory, "dry_run", fail)
    settings = settings_for(1)
    choice = auto.choose(settings, sized(settings))
    assert choice == Choice("ddp", "auto: 8 ranks; the dry run did not finish within 120 s")


@pytest.mark.slow
def test_the_dry_run_of_another_process_gives_mode_and_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINER_STEPS", "no number")  # from this process, not from the settings
    found = memory.dry_run(settings_for(), 2, seconds=120, device_bytes=80 * 2**30)
    assert found.mode == "ddp"
    assert "90% of 81920 MiB" in found.reason
    assert found.worst.peak > found.worst.parameters > 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "seconds", "message"),
    [
        (
            {"task": "no_such_module:Task"},
            120,
            "ended with 64: .* no module named 'no_such_module'",
        ),
        ({}, 0.01, "did not finish within 0 s"),
    ],
)
def test_a_dry_run_without_a_result_says_why(
    written: dict[str, str], seconds: float, message: str
) -> None:
    with pytest.raises(Fault, match=f"the dry run {message}"):
        memory.dry_run(settings_for(None, **written), 2, seconds=seconds)
