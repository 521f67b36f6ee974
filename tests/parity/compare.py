"""How far two runs are apart: loss and gradient norm of every step, the evaluation, every tensor."""

import math
from pathlib import Path
from typing import Any

import torch

from tests.ranks import weights

STEPS = 20
Run = tuple[Path, list[dict[str, Any]]]  # its folder and its events


def curve(events: list[dict[str, Any]], name: str) -> torch.Tensor:
    """Return what every step of a run has under `name`; there must be at least STEPS of them."""
    values = [event[name] for event in events if event["event"] == "step"]
    assert len(values) >= STEPS
    return torch.tensor(values, dtype=torch.float64)


def worst(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest relative difference."""
    return float(((one - other).abs() / one.abs().clamp(min=1e-8)).max())


def differences(one: Run, other: Run) -> dict[str, float]:
    """Return the largest relative difference of everything that is compared, by its name.

    A tensor's is that of the whole, by the 2-norm.
    """
    found = {
        name: worst(curve(one[1], name), curve(other[1], name)) for name in ("loss", "grad_norm")
    }
    last = [[e for e in events if e["event"] == "eval"][-1] for _, events in (one, other)]
    found["evaluation"] = abs(last[0]["loss"] - last[1]["loss"]) / last[0]["loss"]
    if "perplexity" in last[0]:
        found["perplexity"] = abs(last[0]["perplexity"] / last[1]["perplexity"] - 1)
    assert last[0]["samples"] == last[1]["samples"]
    expected, mine = weights(one[0]), weights(other[0])
    assert expected.keys() == mine.keys()
    for name, tensor in expected.items():
        difference = (tensor - mine[name]).double().norm() / tensor.double().norm().clamp(min=1e-9)
        found[name] = float(difference)
    assert all(math.isfinite(value) for value in found.values()), found
    return found
