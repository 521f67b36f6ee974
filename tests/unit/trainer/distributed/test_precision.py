"""What a GPU is told of TF32, by flags that torch keeps without one too."""

import pytest
import torch

from trainer.config.settings import Settings
from trainer.distributed.precision import set_tf32


def test_fp32_is_said_so_that_torch_can_be_asked_what_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.backends.cudnn, "allow_tf32", True
    )  # the default; put back at the end
    set_tf32(Settings(), torch.device("cuda"))
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"  # type: ignore[attr-defined]
    assert torch.get_float32_matmul_precision() == "highest"
    with torch.backends.cudnn.flags(enabled=False):  # reads them all
        pass
