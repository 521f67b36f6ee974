"""A model with the names and shape of nanoGPT's model.py, for k8s/jobs/own_model/nanogpt.py.

It is a minimal version of its own. tests/parity/test_models.py trains it; it also trains nanoGPT's own
file if that replaces this one.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int


class GPT(nn.Module):
    """Subclasses have the forward pass: that of nanoGPT also returns a loss."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.n_embd
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, width),
                "wpe": nn.Embedding(config.block_size, width),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(Block(width, config.n_head) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        for one in self.parameters():
            if one.ndim > 1:
                nn.init.normal_(one, std=0.02)
        self.transformer.get_submodule("wte").weight = self.lm_head.weight


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x)))
        return out
