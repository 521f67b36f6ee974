"""Our operators compared with torch's, through autograd, torch.compile and DTensor."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.ops import cross_entropy

FEW, MANY = 7, 20_000  # classes: torch's functions, and the operator


def example(dtype: torch.dtype, *shape: int, classes: int = MANY) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(*shape, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, shape, generator=generator)
    return logits.to(dtype).requires_grad_(), targets


def reference(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction="none").view(
        targets.shape
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (3, 4)])
@pytest.mark.parametrize("classes", [FEW, MANY])
def test_it_is_torchs_cross_entropy(
    dtype: torch.dtype, shape: tuple[int, ...], classes: int
) -> None:
    logits, targets = example(dtype, *shape, classes=classes)
    losses, expected = cross_entropy(logits, targets), reference(logits, targets)
    torch.testing.assert_close(losses, expected)
    weights = torch.rand(shape, dtype=losses.dtype)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    (other,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("classes", [FEW, MANY])
def test_a_target_that_is_no_class_is_refused(classes: int) -> None:
    logits, targets = example(torch.float32, 5, classes=classes)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        cross_entropy(logits, torch.full_like(targets, -100))


@pytest.mark.slow
def test_its_registrations_hold_what_they_promise() -> None:
    operator = torch.ops.muster.cross_entropy.default
    for dtype in (torch.float32, torch.bfloat16):
        torch.library.opcheck(operator, example(dtype, 3, 4, classes=FEW))
    logits, targets = example(torch.float64, 3, 4, classes=FEW)
    assert torch.autograd.gradcheck(lambda x: operator(x, targets), (logits,))


def test_it_keeps_the_logits_alone() -> None:
    logits, targets = example(torch.float32, 64)
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cross_entropy(logits, targets)
    assert {tensor.data_ptr() for tensor in kept} == {logits.data_ptr(), targets.data_ptr()}
