"""TF32: the flags are set, and can be set and read without a GPU."""

import pytest
import torch

from trainer.config.settings import Settings
from trainer.distributed.precision import set_tf32


def test_fp32_switches_tf32_off_and_the_flags_stay_readable(
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
