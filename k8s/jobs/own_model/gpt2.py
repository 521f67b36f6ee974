"""A GPT-2 of transformers with random weights, on files of tokens or on bytes.

TRAINER_TASK=gpt2:Task TRAINER_MODEL=124m-tied TRAINER_DATA=openwebtext python -m trainer
"""

from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from trainer.tasks import tokens


class Model(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.inner = GPT2LMHeadModel(config)

    def forward(self, x: Tensor) -> Tensor:  # its own returns an object
        logits: Tensor = self.inner(x, use_cache=False).logits
        return logits


class Task(tokens.Task):
    def model(self) -> nn.Module:
        return Model(
            GPT2Config(
                vocab_size=self.files.vocabulary,
                n_positions=self.size.length,
                n_embd=self.size.width,
                n_layer=self.size.layers,
                n_head=self.size.heads,
                resid_pdrop=0,  # seen once, no text is learned by heart
                embd_pdrop=0,
                attn_pdrop=0,
            )
        )
