"""Muon for the matrices of a model and AdamW for the rest, as torch's documentation of Muon advises.

groups = for_muon([{"params": [*model.parameters()]}], model)
optimizer = Muon(groups, lr=1e-3, momentum=0.9, weight_decay=0.1)
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_MATRICES = "matrices"  # an option of each group: whether Muon updates it


class Muon(Optimizer):
    """torch's Muon and AdamW as one optimiser, with the groups of `for_muon`.

    Muon's rate is adjusted to the size of AdamW's updates (Liu et al., 2025), so both use the same rate
    and weight decay.
    """

    def __init__(self, groups: Any, *, lr: float, weight_decay: float, momentum: float) -> None:
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        super().__init__(groups, common)
        # Both share the groups of this optimiser, and each adds its own options to them.
        self._muon = torch.optim.Muon(
            self._groups(matrices=True),
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
            **common,
        )
        self._adamw = torch.optim.AdamW(self._groups(matrices=False), **common)

    def _groups(self, *, matrices: bool) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group[_MATRICES] == matrices]

    def step(self, closure: Any = None) -> Any:
        """Update all groups, after a `closure`, if any, has computed the gradients."""
        loss = None if closure is None else closure()
        parts: tuple[tuple[Optimizer, bool], ...] = ((self._muon, True), (self._adamw, False))
        for part, matrices in parts:
            # Set again, because loading a state replaces state and groups.
            part.state, part.param_groups = self.state, self._groups(matrices=matrices)
            part.step()
        return loss


def for_muon(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Return each group as two: the matrices, and all other parameters.

    The weight of an embedding does not count as a matrix, because it is a table of vectors.
    """
    tables = {
        id(part.weight)
        for part in model.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag)
    }
    return [
        {
            **group,
            "params": [p for p in group["params"] if (p.ndim == 2 and id(p) not in tables) == kind],
            _MATRICES: kind,
        }
        for group in groups
        for kind in (True, False)
    ]
