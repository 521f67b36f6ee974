"""Which versions of torch a pipeline needs."""

import pytest
from torch.torch_version import TorchVersion

from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan.sizing import size
from trainer.strategies import pp
from trainer.tools.fake_step import needs_of_ranks

DRY_RUN, SCHEDULE = "TRAINER_DRY_RUN: .* torch 2.14", "TRAINER_PIPELINE_SCHEDULE=zbv: .* torch 2.13"


@pytest.mark.parametrize(
    ("version", "schedule", "run", "refusal"),
    [
        ("2.11.0+cu130", "zbv", "real", SCHEDULE),
        ("2.12.1", "zbv", "real", SCHEDULE),
        ("2.12.1", "interleaved-1f1b", "real", None),
        ("2.13.0", "zbv", "real", None),
        ("2.13.0+cu130", "1f1b", "dry", DRY_RUN),
        ("2.14.0", "zbv", "dry", None),
        ("2.15.0", "zbv", "dry", None),
    ],
)
def test_an_old_torch_is_refused(
    version: str,
    schedule: str,
    run: str,
    refusal: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pp.torch, "__version__", TorchVersion(version))
    if refusal is None:
        pp.check_torch(schedule, is_dry_run=run == "dry")
        return
    with pytest.raises(Fault, match=refusal) as refused:
        pp.check_torch(schedule, is_dry_run=run == "dry")
    assert refused.value.code == Exit.CONFIG


def test_an_old_torch_is_refused_before_a_stage_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(mode="pp", task="charlm-gpt", pipeline_schedule="zbv")
    sizing = size(settings, 2, label=variable)
    assert len(needs_of_ranks(settings, sizing)) == 2
    for version, refusal in (("2.12.1", SCHEDULE), ("2.13.0", DRY_RUN)):
        monkeypatch.setattr(pp.torch, "__version__", TorchVersion(version))
        with pytest.raises(Fault, match=refusal):
            needs_of_ranks(settings, sizing)
