"""The ready patterns on what a framework really writes.

make test-frameworks
"""

import re
import subprocess
from pathlib import Path

import pytest

from k8s.jobfile.run import SETS
from tests.frameworks.test_scripts import ENVIRONMENT
from trainer.launcher.output.patterns import Patterns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ENVIRONMENT / ".stamp").exists(), reason="no build/frameworks; make frameworks"
    ),
]

LIGHTNING = """
import sys

import lightning
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = (self.layer(batch[0]) - 3).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", self.layer(batch[0]).mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


bar = TQDMProgressBar(refresh_rate=2) if sys.argv[1] == "tqdm" else RichProgressBar()
rows = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", callbacks=[bar], logger=False, enable_checkpointing=False
)
trainer.fit(Model(), rows, rows)
print("last loss", trainer.callback_metrics["train_loss"].item())
"""


@pytest.mark.parametrize(
    ("bar", "steps"), [("tqdm", list(range(2, 25, 2))), ("rich", [24])], ids=["tqdm", "rich"]
)
def test_lightnings_bars_are_read(bar: str, steps: list[int], tmp_path: Path) -> None:
    """Three epochs of eight steps, with evaluations; rich writes one bar, at the end."""
    (tmp_path / "train.py").write_text(LIGHTNING, encoding="utf-8")
    ended = subprocess.run(
        [ENVIRONMENT / "bin" / "python", "train.py", bar],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    patterns = Patterns(SETS["lightning"])
    lines = re.split(r"[\r\n]", ended.stdout)
    events = [event for line in lines if (event := patterns.read(line))]
    assert sorted({int(str(event["step"])) for event in events}) == steps
    found = [int(str(event["step"])) for event in events]
    assert found == sorted(found)  # none goes back
    last = float(ended.stdout.split("last loss")[1])
    assert float(str(events[-1]["loss"])) == pytest.approx(last, rel=0.01)
