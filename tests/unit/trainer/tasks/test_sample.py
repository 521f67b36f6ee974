"""The text that the task tokens generates after an evaluation is the same in every mode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.parity.tasks
from tests.ranks import run_ranks
from trainer import tasks
from trainer.config.environment import from_environment
from trainer.config.exits import Exit, Fault
from trainer.tasks import tokens
from trainer.tasks.parts.generation import continued, decoder

COMMON = {"task": "tests.parity.tasks:Tokens", "steps": "6", "precision": "fp64"}
COMMON |= {"optimizer": "adamw", "lr": "0.02"}  # to write something else after three steps
COMMON |= {"eval_steps": "3", "global_batch": "16", "micro_batch": "4", "checkpoint_steps": "0"}


def counts_up(window: torch.Tensor) -> torch.Tensor:
    """Return logits of a model that is sure that the token after n is n + 1."""
    return 100.0 * torch.nn.functional.one_hot((window + 1) % 50, 50)


def test_a_token_follows_the_one_before_it() -> None:
    made = continued(torch.tensor([3, 4]), counts_up, count=5, length=10, seed=1)
    assert made == [5, 6, 7, 8, 9]
    beyond = continued(torch.tensor([3, 4]), counts_up, count=30, length=10, seed=1)
    assert beyond == [*range(5, 35)]


def test_the_seed_decides_what_is_drawn_and_nothing_else_draws() -> None:
    def flat(window: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, window.shape[1], 50)

    before = torch.get_rng_state()
    one, same, other = (
        continued(torch.tensor([0]), flat, count=9, length=10, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert torch.get_rng_state().equal(before)


def test_a_model_that_has_diverged_still_writes() -> None:
    nan = torch.full((1, 10, 50), torch.nan)
    assert len(continued(torch.tensor([0]), lambda _: nan, count=3, length=10, seed=1)) == 3


def test_bytes_are_text_and_other_tokens_are_not() -> None:
    decode = decoder(None, vocabulary=256)
    assert decode is not None
    assert decode([*"né".encode(), 255]) == "né\N{REPLACEMENT CHARACTER}"
    assert decoder(None, vocabulary=50_304) is None


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"sample": "-1"}, "TRAINER_TASK_SAMPLE='-1': must be at least 0"),
        (
            {"sample": "8", "tokenizer": "/none.json"},
            "TRAINER_TASK_TOKENIZER: needs the package tokenizers, which is not installed here",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(own: dict[str, str], says: str) -> None:
    given = {f"TRAINER_TASK_{name.upper()}": value for name, value in own.items()}
    with pytest.raises(Fault) as caught:
        tasks.load(from_environment({"TRAINER_TASK": "tokens"} | given))
    assert caught.value.code == Exit.CONFIG
    assert str(caught.value).startswith(says)


def samples(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "sample"]


@pytest.mark.slow
def test_every_mode_writes_the_same_and_trains_as_without(tmp_path: Path) -> None:
    wanted = COMMON | {"task_sample": "12"}
    one = run_ranks(1, tmp_path / "one", mode="single", **wanted)
    first, last = samples(one)
    assert (first["step"], last["step"]) == (3, 6)
    assert len(last["tokens"]) == 12
    assert first["tokens"] != last["tokens"]  # the model has trained in between
    assert last["text"] == bytes(last["prompt"] + last["tokens"]).decode(errors="replace")
    without = run_ranks(1, tmp_path / "without", mode="single", **COMMON)
    losses = [[e["loss"] for e in run if e["event"] in ("step", "eval")] for run in (one, without)]
    assert losses[0] == losses[1]
    assert not samples(without)
    for mode in ("ddp", "ddp-zero1", "fsdp", "tp", "pp", "pp zbv", "pp tp"):
        more = {"mode": mode.split()[0]}
        if mode == "pp zbv":
            more |= {"pipeline_schedule": "zbv"}
        if mode == "pp tp":
            more |= {"mesh": "pp=2,tp=2"}
        ranks = 4 if mode == "pp tp" else 2
        found = samples(run_ranks(ranks, tmp_path / mode, **(wanted | more)))
        assert [event["tokens"] for event in found] == [first["tokens"], last["tokens"]], mode


class Longer(tests.parity.tasks.Tokens):
    """Its generation uses more samples at once than a micro-batch has."""

    def sample(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        inputs, _ = self.data(train=False).batch(torch.arange(5))
        return {"shape": list(forward(inputs).shape)}


class Drawing(tests.parity.tasks.Tokens):
    """It draws each token, until it draws a certain one, as much of people's code does."""

    def sample(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        inputs, _ = self.data(train=False).batch(torch.arange(1))
        drawn = [-1]
        while drawn[-1] % 8:
            logits = forward(inputs)[0, -1]
            drawn.append(int(torch.multinomial(logits.softmax(0), 1)))
        return {"drawn": drawn}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "ranks", "more"),
    [("fsdp", 2, {}), ("pp", 4, {"mesh": "pp=2,dp_replicate=2"}), ("tp", 2, {})],
)
def test_ranks_draw_the_same(mode: str, ranks: int, more: dict[str, str], tmp_path: Path) -> None:
    wanted = COMMON | {"task": f"{__name__}:Drawing"}
    found = samples(run_ranks(1, tmp_path / "one", mode="single", **wanted))
    same = samples(run_ranks(ranks, tmp_path / mode, mode=mode, **wanted, **more, timeout=60))
    assert [event["drawn"] for event in same] == [event["drawn"] for event in found]
    assert found[0]["drawn"] != found[1]["drawn"]


@pytest.mark.slow
def test_a_pipeline_refuses_what_its_stages_cannot_pass_on(start: Any) -> None:
    given = COMMON | {"task": f"{__name__}:Longer", "mode": "pp"}
    variables = {f"TRAINER_{name.upper()}": value for name, value in given.items()}
    ended = start("-m", "trainer.launch", PET_NPROC_PER_NODE="2", **variables).end()
    assert ended.code == Exit.CONFIG
    assert "stages pass at most 4 samples of shape (32,)" in ended.stderr
    assert not ended.of("step")


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_them(tmp_path: Path) -> None:
    run_ranks(1, tmp_path, mode="single", **COMMON)
    longer = COMMON | {"steps": "9", "task_sample": "12"}
    last = samples(run_ranks(1, tmp_path, mode="single", **longer))[-1]
    assert (last["step"], len(last["tokens"])) == (9, 12)
    refused = COMMON | {"steps": "9", "seed": "1"}
    run_ranks(1, tmp_path, code=64, mode="single", **refused)


def test_its_settings_are_those_that_the_renderer_checks() -> None:
    from trainer.config.own_settings import BUILT_IN

    assert tokens.Task.Settings is BUILT_IN["tokens"]


@pytest.mark.slow
def test_a_stop_request_ends_a_sample(start: Any) -> None:
    variables = {f"TRAINER_{name.upper()}": value for name, value in COMMON.items()}
    variables |= {"TRAINER_TASK_SAMPLE": "2000", "TRAINER_EVAL_STEPS": "1", "TRAINER_LOG": "json"}
    started = start("-m", "trainer", **variables)
    started.wait_for('"event": "eval"')  # the first one is made now, in a second or more
    started.process.terminate()
    ended = started.end()
    assert ended.code == Exit.STOPPED
    assert [event["kind"] for event in ended.of("fault")] == ["stopped"]
    assert not samples(ended.events)
