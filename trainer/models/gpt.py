"""A decoder-only transformer of today: rotary positions, RMSNorm, SwiGLU, attention by torch's kernels.

model = Gpt(SIZES["124m"], vocabulary=50304)

Rotary positions are those of Su et al. (2021), RMSNorm of Zhang and Sennrich (2019), SwiGLU of Shazeer
(2020). The first weights are GPT-2's (Radford et al., 2019): normal, the layers that add to the stream
smaller with the depth.
"""

import math
from dataclasses import dataclass

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

_ROTARY_BASE = 10_000.0
_DEVIATION = 0.02  # of the first weights


@dataclass(frozen=True)
class Size:
    """Numbers of a model. `length`: tokens of a sample."""

    width: int
    heads: int
    layers: int
    length: int

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layers: 8/3 of the stream's, in whole multiples of 64."""
        return math.ceil(self.width * 8 / 3 / 64) * 64


SIZES = {
    "tiny": Size(width=128, heads=4, layers=4, length=128),
    "124m": Size(width=768, heads=12, layers=12, length=1024),
    "350m": Size(width=1024, heads=16, layers=24, length=1024),
    "1b": Size(width=2048, heads=16, layers=24, length=2048),
}


class Gpt(nn.Module):
    """Maps tokens, shape (n, length), to logits of the next one, shape (n, length, vocabulary).

    `tied`: the head uses the weights of the embedding; then the model cannot be cut or split.
    """

    def __init__(self, size: Size, *, vocabulary: int, tied: bool = False) -> None:
        super().__init__()
        self._size = size
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                adds = name.endswith(("mix.weight", "down.weight"))
                depth = math.sqrt(2 * size.layers) if adds else 1
                nn.init.normal_(parameter, std=_DEVIATION / depth)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return chain.run(self.chain(), tokens)

    def chain(self) -> chain.Chain:
        """Return the forward pass in pieces, for the modes that cut it."""
        return [
            (("tokens",), self.tokens),
            *(((f"blocks.{number}",), block) for number, block in enumerate(self.blocks)),
            (("norm", "head"), lambda stream: self.head(self.norm(stream))),
        ]

    def tensor_plan(self, *, sequence_parallel: bool, loss_parallel: bool) -> TensorPlan:
        """Return how the layers are split: by heads, hidden units and rows of the vocabulary."""
        stream = Shard(1) if sequence_parallel else Replicate()
        # gathered once for all the layers that read it
        gather = PrepareModuleOutput(
            output_layouts=stream, desired_output_layouts=Replicate(), use_local_output=False
        )
        rows = RowwiseParallel(output_layouts=stream)
        logits = Shard(-1) if loss_parallel else Replicate()
        return TensorPlan(
            {
                "tokens": [RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)],
                "*norm*": [SequenceParallel() if sequence_parallel else Whole(), gather],
                "*.mix": [rows],
                "*.down": [rows],
                "blocks.*": [ColwiseParallel()],
                "head": [
                    ColwiseParallel(output_layouts=logits, use_local_output=not loss_parallel)
                ],
            },
            divisible={"heads": self._size.heads, "positions": self._size.length},
        )


class _Block(nn.Module):
    """Causal self-attention and a gated feed-forward layer, each on the normalised stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._head_width = size.width // size.heads
        self.norm1 = nn.RMSNorm(size.width)
        self.queries = nn.Linear(size.width, size.width, bias=False)
        self.keys = nn.Linear(size.width, size.width, bias=False)
        self.values = nn.Linear(size.width, size.width, bias=False)
        self.mix = nn.Linear(size.width, size.width, bias=False)
        self.norm2 = nn.RMSNorm(size.width)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """Map the stream, shape (n, length, width), to itself with the block's part added."""
        normed = self.norm1(stream)
        queries, keys, values = (  # with tp a rank has some of the heads
            part(normed).unflatten(-1, (-1, self._head_width)).transpose(1, 2)
            for part in (self.queries, self.keys, self.values)
        )
        rotation = _rotation(queries)
        attended = F.scaled_dot_product_attention(
            _rotate(queries, rotation), _rotate(keys, rotation), values, is_causal=True
        )
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        normed = self.norm2(stream)
        out: Tensor = stream + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return out


def _rotation(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each position's angles, shape (length, head width / 2)."""
    length, width = heads.shape[-2:]
    steps = torch.arange(0, width, 2, device=heads.device, dtype=torch.float32) / width
    positions = torch.arange(length, device=heads.device, dtype=torch.float32)
    angles = torch.outer(positions, _ROTARY_BASE**-steps)
    return angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of a head's numbers by the angle of its position."""
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
