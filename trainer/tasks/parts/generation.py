"""Generate text with a model that predicts the next token.

made = continued(prompt, forward, count=64, length=128, seed=0)
text = decoder("tokenizer.json")(made)
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.exits import Exit, Fault

_TEMPERATURE = 0.8  # below 1: likely tokens are drawn more often than the model predicts


def continued(
    prompt: Tensor, forward: Callable[[Tensor], Tensor], *, count: int, length: int, seed: int
) -> list[int]:
    """Return `count` tokens drawn after a prompt, shape (n,); the same for the same seed and weights.

    Every pass takes a whole window of `length` tokens, filled up after the last token: a causal model
    ignores what follows a token, and every pass has the same shape, which some modes and compilers need.
    """
    tokens: list[int] = prompt.tolist()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        recent = tokens[-length:]
        window = torch.zeros(1, length, dtype=torch.long)
        window[0, : len(recent)] = torch.tensor(recent)
        logits = forward(window)[0, len(recent) - 1].float().nan_to_num()  # it may have diverged
        chances = (logits / _TEMPERATURE).softmax(dim=0)
        tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    return tokens[len(prompt) :]


def decoder(tokenizer: Path | None, *, vocabulary: int) -> Callable[[list[int]], str] | None:
    """Return a function from tokens to text, by a tokenizer's file or for bytes, or None for neither.

    Raises Fault(64) without the package tokenizers, Fault(65) if the file is not one of that package.
    """
    if tokenizer is None:
        return _text_of_bytes if vocabulary == 256 else None
    if find_spec("tokenizers") is None:
        raise Fault(
            Exit.CONFIG,
            "TRAINER_TASK_TOKENIZER: needs the package tokenizers, which is not installed here; "
            "run `pip install tokenizers`; for pods put it into setup of the job file",
        )
    library: Any = import_module("tokenizers")
    try:
        made = library.Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the package has no class of its own for it
        raise Fault(
            Exit.DATA,
            f"TRAINER_TASK_TOKENIZER={tokenizer}: not a file of the package tokenizers: {error}",
        ) from error

    def decode(tokens: list[int]) -> str:
        text: str = made.decode(tokens, skip_special_tokens=False)
        return text

    return decode


def _text_of_bytes(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")
