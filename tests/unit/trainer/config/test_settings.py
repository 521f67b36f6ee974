"""Settings: refusals and their messages; values do not change in the environment."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from trainer.config.environment import (
    environment_of,
    from_environment,
    parse,
    variable,
)
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

REFUSED = [
    ({"TRAINER_PROFILE": "5"}, "TRAINER_PROFILE='5': must be FIRST:LAST, as in 100:105"),
    ({"TRAINER_LRR": "1"}, "TRAINER_LRR: no such setting; did you mean TRAINER_LR?"),
    ({"TRAINER_ZZZZ": "1"}, "TRAINER_ZZZZ: no such setting; --help lists them all"),
    ({"TRAINER_MODE": "dpd"}, "TRAINER_MODE='dpd': no such mode; choose auto, single, "),
    ({"TRAINER_TASK": "digit"}, "TRAINER_TASK='digit': no such task; choose charlm-gpt, "),
    ({"TRAINER_TASK": "a b:C"}, "TRAINER_TASK='a b:C': no such task"),
    ({"TRAINER_TASK": "a:"}, "TRAINER_TASK='a:': no such task"),
    ({"TRAINER_LR": "fast"}, "TRAINER_LR='fast': must be a number"),
    ({"TRAINER_LR": "nan"}, "TRAINER_LR='nan': must be"),
    ({"TRAINER_LR": "0"}, "TRAINER_LR='0': must be greater than 0"),
    ({"TRAINER_GLOBAL_BATCH": "0"}, "TRAINER_GLOBAL_BATCH='0': must be at least 1"),
    ({"TRAINER_EPOCHS": "1.5"}, "TRAINER_EPOCHS='1.5': must be a whole number"),
    ({"TRAINER_SEED": "-1"}, "TRAINER_SEED='-1': must be"),
    ({"TRAINER_COMPILE": "maybe"}, "TRAINER_COMPILE='maybe': must be true or false or 'step'"),
    (
        {"TRAINER_OPTIMIZER": "adam"},
        "TRAINER_OPTIMIZER='adam': must be 'sgd', 'adamw', 'adamw-fused' or 'muon'",
    ),
    (
        {"TRAINER_HEALTH_TIMEOUT": "600", "TRAINER_CHECKPOINT_TIMEOUT": "700"},
        "TRAINER_HEALTH_TIMEOUT=600: must be above TRAINER_CHECKPOINT_TIMEOUT=700, which reports",
    ),
]


@pytest.mark.parametrize(("environment", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_variable_value_and_remedy(environment: dict[str, str], message: str) -> None:
    with pytest.raises(Fault) as caught:
        from_environment(environment)
    assert caught.value.code == Exit.CONFIG
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_wrong_setting_is_named_as_the_user_wrote_it() -> None:
    with pytest.raises(Fault, match=r"trainer\.globalBatch='x': must be"):
        parse({"global_batch": "x"}, label=lambda _: "trainer.globalBatch")


def test_nothing_set_is_the_default_and_empty_is_unset() -> None:
    assert from_environment({"PATH": "/bin", "TRAINER_LR": ""}) == Settings()


def test_the_run_folder_of_a_task_of_ones_own_has_no_colon() -> None:
    settings = from_environment({"TRAINER_TASK": "my.tasks:Own"})
    assert str(settings.run_folder) == "runs/my.tasks.Own"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "lr": st.floats(1e-8, 10),
            "global_batch": st.integers(1, 10**6),
            "seed": st.integers(0, 2**32 - 1),
            "optimizer": st.sampled_from(["sgd", "adamw"]),
            "out": st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
            "micro_batch": st.integers(1, 64),
        },
    )
)
def test_what_was_set_comes_back_from_the_environment(values: dict[str, object]) -> None:
    settings = parse({name: str(value) for name, value in values.items()}, label=variable)
    assert from_environment(environment_of(settings)) == settings
    assert environment_of(settings).keys() == {variable(name) for name in values}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_help_may_be_read_in_part(unbuffered: str) -> None:
    reading = subprocess.Popen(
        [sys.executable, "-m", "trainer", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    reading.stdout.close()  # as `| head` does
    assert reading.stderr.read() == b""
    assert reading.wait() == 0
