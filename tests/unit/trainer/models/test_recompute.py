"""Activation checkpointing: less is kept for the backward pass, under the same names."""

import torch
from torch import Tensor, nn

from trainer.models.recompute import recompute_blocks
from trainer.tasks.charlm_gpt import Model


def test_less_is_kept_and_names_and_gradients_stay() -> None:
    text = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain = Model()
    recomputing = Model()
    recomputing.load_state_dict(plain.state_dict())
    recompute_blocks(recomputing)
    assert recomputing.state_dict().keys() == plain.state_dict().keys()
    assert [type(module).__name__ for module in plain.modules()] == [
        type(module).__name__ for module in recomputing.modules()
    ]
    assert _kept(recomputing, text) < 0.5 * _kept(plain, text)
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def _kept(model: nn.Module, text: Tensor) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, and run both."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(text).square().mean()
    kept = sum(sizes.values())
    loss.backward()
    return kept
