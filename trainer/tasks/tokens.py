"""A GPT on files of tokens in nanoGPT's format; without data, on the standard library's source.

TRAINER_TASK=tokens python -m trainer                                        # tiny, on bytes
TRAINER_TASK=tokens TRAINER_MODEL=124m TRAINER_DATA=owt python -m trainer    # owt/train.bin, owt/val.bin
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import trainer.config.settings
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import Tokens
from trainer.models.gpt import SIZES, Gpt
from trainer.tasks.parts.generation import continued, decoder
from trainer.tasks.parts.next_token import NextToken
from trainer.tasks.parts.token_files import Windows, of_bytes, open_files

DEFAULTS = {"epochs": 1, "optimizer": "adamw", "lr": 0.002, "model": "tiny"}
MEASURED = "tiny: accuracy 0.53, loss 1.81 nats per byte, in 45 s"
# A model with tied weights has no entry: it can be neither split nor cut.
SPLITS = {
    "tiny": {"heads": 4, "positions": 128},
    "124m": {"heads": 12, "positions": 1024},
    "350m": {"heads": 16, "positions": 1024},
    "1b": {"heads": 16, "positions": 2048},
}
CUTS = {"tiny": 6, "124m": 14, "350m": 26, "1b": 26}
OWN_SETTINGS = True

_PROMPT = 16  # tokens that a generated text starts with: the first of the test set
_TIED = "-tied"  # after a size's name: the head has the embedding's weights


class Task(NextToken):
    """Predicts the next token. A sample is a window of the model's length."""

    Settings = Tokens

    def __init__(
        self, settings: trainer.config.settings.Settings, own: Tokens | None = None
    ) -> None:
        name = settings.model or DEFAULTS["model"]
        size = str(name).removesuffix(_TIED)
        if size not in SIZES:
            raise Fault(
                Exit.CONFIG,
                f"TRAINER_MODEL={name!r}: task tokens has {', '.join(SIZES)}, each also with "
                f"{_TIED} at its end",
            )
        self.size, self.tied = SIZES[size], size != name
        length = self.size.length
        self.files = open_files(settings.data, length) if settings.data else of_bytes(length)
        self._seed, self._wanted = settings.seed, own.sample if own else 0
        self._decode: Callable[[list[int]], str] | None = None
        if own and self._wanted:
            self._decode = decoder(own.tokenizer, vocabulary=self.files.vocabulary)

    def model(self) -> nn.Module:
        return Gpt(self.size, vocabulary=self.files.vocabulary, tied=self.tied)

    def data(self, *, train: bool) -> Windows:
        return self.files.train if train else self.files.test

    def sample(self, forward: Callable[[Tensor], Tensor]) -> dict[str, Any] | None:
        """Return the first tokens of the test set, and what the model adds to them."""
        if not self._wanted:
            return None
        first, _ = self.files.test.batch(torch.tensor([0]))
        prompt = first[0, :_PROMPT]
        made = continued(
            prompt, forward, count=self._wanted, length=first.shape[1], seed=self._seed
        )
        found: dict[str, Any] = {"prompt": prompt.tolist(), "tokens": made}
        if self._decode:
            found["text"] = self._decode(found["prompt"] + made)
        return found
