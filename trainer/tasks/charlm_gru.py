"""A character model with GRUs: bytes in, the next byte out.

TRAINER_TASK=charlm-gru TRAINER_OPTIMIZER=adamw TRAINER_LR=0.003 python -m trainer
"""

from torch import Tensor, nn

from trainer.data import Tensors
from trainer.settings import Settings
from trainer.tasks import _text


class Model(nn.Module):
    """Embedding, two layers of GRU, and a linear layer to the logits of the next byte."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_text.VOCABULARY, width)
        self.recurrent = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, _text.VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Map bytes, shape (n, length), to logits, shape (n, length, 256)."""
        states, _ = self.recurrent(self.embedding(text))
        logits: Tensor = self.head(states)
        return logits


class Task:
    metric = "accuracy"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def model(self) -> nn.Module:
        return Model()

    def data(self, *, train: bool) -> Tensors:
        return _text.windows(self._settings, train=train)

    loss = staticmethod(_text.loss)
    score = staticmethod(_text.score)
