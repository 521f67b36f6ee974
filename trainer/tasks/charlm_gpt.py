"""A character model with a small transformer: predicts the next byte.

TRAINER_TASK=charlm-gpt python -m trainer
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from trainer.models import chain
from trainer.models.tensor_plan import TensorPlan, Whole
from trainer.tasks.parts.text import LENGTH, VOCABULARY, TextTask

DEFAULTS = {"epochs": 15, "optimizer": "adamw", "lr": 0.001}
MEASURED = "accuracy 0.29 in 42 s of one core"
SPLITS = {"heads": 4, "positions": 64}
CUTS = 4


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each on the normalised residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm1 = nn.LayerNorm(width)
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the stream, shape (n, length, width), with the block's output added."""
        normed = self.norm1(stream)
        queries, keys, values = (
            part(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.queries, self.keys, self.values)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        out: Tensor = stream + self.down(F.gelu(self.up(self.norm2(stream))))
        return out


class Model(nn.Module):
    """A decoder-only transformer (Radford et al., 2019), small."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self._heads = heads
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Map bytes, shape (n, length), to logits, shape (n, length, 256)."""
        return chain.run(self.chain(), text)

    def chain(self) -> chain.Chain:
        """Return the forward pass in pieces, for the modes that cut it."""
        return [
            (("bytes", "positions"), self._embed),
            *(((f"blocks.{number}",), block) for number, block in enumerate(self.blocks)),
            (("norm", "head"), lambda stream: self.head(self.norm(stream))),
        ]

    def tensor_plan(self, *, sequence_parallel: bool, loss_parallel: bool) -> TensorPlan:
        """Return how the layers are split: by heads, hidden units and rows of the vocabulary.

        The stream between them is whole on every rank; with `sequence_parallel` a rank has its share
        of the sequence.
        """
        stream = Shard(1) if sequence_parallel else Replicate()
        norm = SequenceParallel() if sequence_parallel else Whole()
        # gathered once for all the layers that read it
        gather = PrepareModuleOutput(
            output_layouts=stream, desired_output_layouts=Replicate(), use_local_output=False
        )
        rows = RowwiseParallel(output_layouts=stream)
        logits = Shard(-1) if loss_parallel else Replicate()
        return TensorPlan(
            {
                "bytes": [RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)],
                "positions": [
                    RowwiseParallel(
                        input_layouts=Replicate(),
                        output_layouts=Shard(0) if sequence_parallel else Replicate(),
                    )
                ],
                "*norm*": [norm, gather],
                "*.mix": [rows],
                "*.down": [rows],
                "blocks.*": [ColwiseParallel()],
                "head": [
                    ColwiseParallel(output_layouts=logits, use_local_output=not loss_parallel)
                ],
            },
            divisible={"heads": self._heads, "positions": LENGTH},
        )

    def _embed(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        stream: Tensor = self.bytes(text) + self.positions(positions)
        return stream


Task = partial(TextTask, build=Model)
