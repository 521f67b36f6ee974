"""Settings that a user's task declares: from the environment and the job file, with checks."""

import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from k8s.cli.schema import json_schema
from k8s.jobfile.env import set_elsewhere
from k8s.jobfile.validate import settings_of, validate
from tests.conftest import run_command
from tests.ranks import run_ranks
from tests.unit.trainer.engine.wrong_tasks import Right
from trainer import check, tasks
from trainer.config.environment import environment_of, from_environment
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import own_settings, values_of, variables_of

TASK = f"{__name__}:Sized"


class Sized(Right):
    class Settings(BaseModel):
        layers: int = Field(2, ge=1)
        kind_of_norm: Literal["batch", "layer"] = "layer"

    def __init__(self, settings: Any, own: Settings) -> None:
        super().__init__(settings)
        self.own = own


class Needs(Right):
    class Settings(BaseModel):
        folder: Path
        words: Path = Field(default_factory=Path.cwd)

    def __init__(self, settings: Any, own: Settings) -> None:
        super().__init__(settings)
        self.own = own


class Several(Right):
    class Settings(BaseModel):
        widths: list[int] = [16]
        betas: tuple[float, float] | None = None
        shares: dict[str, float] = {}
        depth: Literal[18, 34] = 18
        rate: float = Field(0.1, alias="dropRate")
        text: str = ""
        words: set[str] = set(map(str, range(20)))
        limit: float | None = None

    def __init__(self, settings: Any, own: Settings) -> None:
        super().__init__(settings)
        self.own = own


class SettingsOfNoKind(Right):
    Settings = "layers"


def made(task: str = TASK, **variables: str) -> Any:
    written = {f"TRAINER_TASK_{name.upper()}": value for name, value in variables.items()}
    return tasks.load(from_environment({"TRAINER_TASK": task} | written))


def test_a_task_gets_its_settings_and_defaults() -> None:
    assert (made().own.layers, made().own.kind_of_norm) == (2, "layer")
    changed = made(layers="4", kind_of_norm="batch").own
    assert (changed.layers, changed.kind_of_norm) == (4, "batch")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("widths", "[8, 4]", [8, 4]),
        ("betas", "[0.9, 0.95]", (0.9, 0.95)),
        ("shares", '{"a": 1}', {"a": 1.0}),
        ("depth", "34", 34),
        ("rate", "0.5", 0.5),
        ("text", "[8, 4]", "[8, 4]"),
    ],
)
def test_lists_and_numbers_of_a_literal_are_set_by_text(name: str, text: str, value: Any) -> None:
    assert getattr(made(f"{__name__}:Several", **{name: text}).own, name) == value


def test_the_variables_of_a_run_set_the_same_values_again() -> None:
    """A set's order, which differs between processes, is not a part of it."""
    own = made(f"{__name__}:Several", widths="[8, 4]", shares='{"a": 1}').own
    variables = variables_of(own)
    assert (variables["TRAINER_TASK_WIDTHS"], variables["TRAINER_TASK_DEPTH"]) == ("[8, 4]", "18")
    assert "TRAINER_TASK_LIMIT" not in variables
    assert values_of(own)["words"] == sorted(own.words)
    again = from_environment({"TRAINER_TASK": f"{__name__}:Several"} | variables)
    assert tasks.load(again).own == own  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("task", "variables", "says"),
    [
        (
            TASK,
            {"layer": "4"},
            "TRAINER_TASK_LAYER: task {task} has no such setting; did you mean ",
        ),
        (TASK, {"depth": "4"}, "it has TRAINER_TASK_LAYERS, TRAINER_TASK_KIND_OF_NORM"),
        (TASK, {"layers": "0"}, "TRAINER_TASK_LAYERS='0': must be at least 1"),
        (TASK, {"layers": "many"}, "TRAINER_TASK_LAYERS='many': must be a whole number"),
        (TASK, {"kind_of_norm": "x"}, "TRAINER_TASK_KIND_OF_NORM='x': must be 'batch' or 'layer'"),
        (
            f"{__name__}:Several",
            {"widths": "8,4"},
            "='8,4': must be a valid list in JSON, such as [1, 2]",
        ),
        (f"{__name__}:Several", {"widths": '[8, "x"]'}, "must be a whole number"),
        (
            f"{__name__}:Several",
            {"shares": "a"},
            """must be a valid dictionary in JSON, such as {{"a": 1}}""",
        ),
        (f"{__name__}:Several", {"depth": "35"}, "TRAINER_TASK_DEPTH='35': must be 18 or 34"),
        (f"{__name__}:Needs", {}, "TRAINER_TASK_FOLDER: field required"),
        (
            f"{__name__}:Right",
            {"layers": "4"},
            "task {task} has no settings of its own; declare them in a pydantic",
        ),
        (f"{__name__}:SettingsOfNoKind", {}, "its Settings is not a pydantic model: 'layers'"),
        (
            "digits",
            {"layers": "4"},
            "TRAINER_TASK_LAYERS: TRAINER_TASK='digits' has no settings of",
        ),
    ],
)
def test_wrong_ones_are_refused_by_name(task: str, variables: dict[str, str], says: str) -> None:
    with pytest.raises(Fault) as caught:
        made(task, **variables)
    assert caught.value.code == Exit.CONFIG
    assert says.format(task=task) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_file_has_them_and_its_pods_get_them() -> None:
    trainer = {"task": TASK, "taskLayers": 4, "taskKindOfNorm": "batch"}
    settings = settings_of(validate({"name": "sized", "trainer": trainer}))
    environment = environment_of(settings)
    assert environment["TRAINER_TASK_LAYERS"] == "4"
    assert environment["TRAINER_TASK_KIND_OF_NORM"] == "batch"
    assert own_settings(Sized, from_environment(environment)) == Sized.Settings(
        layers=4, kind_of_norm="batch"
    )
    assert set_elsewhere("TRAINER_TASK_KIND_OF_NORM") == "set trainer.taskKindOfNorm"


def test_a_job_file_has_a_list_as_text() -> None:
    trainer = {"task": f"{__name__}:Several", "taskWidths": "[8, 4]"}
    settings = settings_of(validate({"name": "several", "trainer": trainer}))
    assert settings.own == {"task_widths": "[8, 4]"}
    with pytest.raises(
        Fault, match=r"^trainer\.taskWidths=\[8\]: .*; write a list or a mapping as text"
    ):
        validate({"name": "several", "trainer": trainer | {"taskWidths": [8]}})


@pytest.mark.parametrize("key", ["tasklayers", "task_layers", "taskLayers.x"])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(Fault, match=r"no such setting"):
        settings_of(validate({"name": "sized", "trainer": {"task": TASK, key: 4}}))


def test_the_schema_knows_them() -> None:
    import jsonschema

    file = yaml.safe_load(f"{{name: a, trainer: {{task: '{TASK}', taskLayers: 4}}}}")
    jsonschema.validate(file, json_schema())
    for wrong in ("tasklayers", "lerningRate"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"name": "a", "trainer": {wrong: 4}}, json_schema())


def test_check_tells_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_TASK_LAYERS", "5")
    assert check.main([TASK]) == Exit.DONE
    shown = "its own settings: TRAINER_TASK_LAYERS=5, TRAINER_TASK_KIND_OF_NORM=layer"
    assert shown in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "shown"),
    [
        (TASK, "TRAINER_TASK_LAYERS"),
        (f"{__name__}:Needs", "TRAINER_TASK_WORDS   [computed]"),
        ("tokens", "TRAINER_TASK_SAMPLE"),
        ("no.such:Task", None),
    ],
)
def test_help_has_them(task: str, shown: str | None) -> None:
    done = run_command(
        [sys.executable, "-m", "trainer", "--help"], env={"TRAINER_TASK": task}, check=True
    )
    assert ("settings of task" in done.stdout) is (shown is not None)
    assert (shown or "TRAINER_LR") in done.stdout


@pytest.mark.slow
def test_they_decide_the_result(tmp_path: Path) -> None:
    settings = {"task": TASK, "steps": "3"}
    run_ranks(1, tmp_path, **settings)
    run_ranks(1, tmp_path, **settings, task_layers="2")  # the default: finished already
    refused = run_ranks(1, tmp_path, code=64, **settings, task_layers="4")
    assert "TRAINER_TASK_LAYERS 4, was 2" in refused[-1]["message"]
