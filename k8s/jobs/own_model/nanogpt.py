"""nanoGPT's model on its files of tokens, or on bytes. Put its model.py next to this file.

TRAINER_TASK=nanogpt:Task python -m trainer
"""

import torch
from model import GPT, GPTConfig
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from trainer.models import chain
from trainer.models.tensor_plan import TensorPlan
from trainer.tasks import tokens


class Model(GPT):
    def forward(self, x: Tensor) -> Tensor:  # its own returns a loss, too
        return chain.run(self.chain(), x)

    def chain(self) -> chain.Chain:
        """Return the pieces, for the modes that cut the model into stages: pp, mp."""
        parts = self.transformer
        return [
            (("transformer.wte", "transformer.wpe"), self.embed),
            *(((f"transformer.h.{n}",), block) for n, block in enumerate(parts.h)),
            (("transformer.ln_f", "lm_head"), lambda x: self.lm_head(parts.ln_f(x))),
        ]

    def embed(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        out: Tensor = self.transformer.drop(self.transformer.wte(x) + self.transformer.wpe(places))
        return out

    def tensor_plan(self, *, sequence_parallel: bool, loss_parallel: bool) -> TensorPlan:  # noqa: ARG002
        """Return how the axis tp splits it: the feed-forward layers and the head; the rest is whole."""
        logits = Shard(-1) if loss_parallel else Replicate()
        head = ColwiseParallel(output_layouts=logits, use_local_output=not loss_parallel)
        down = [RowwiseParallel()]
        return TensorPlan({"*.c_fc": [ColwiseParallel()], "*.mlp.c_proj": down, "lm_head": [head]})


class Task(tokens.Task):
    def model(self) -> nn.Module:
        size, vocabulary = self.size, self.files.vocabulary
        model = Model(GPTConfig(size.length, vocabulary, size.layers, size.heads, size.width))
        if not self.tied:  # tp, pp and mp want it so; nanoGPT ties the head to the embedding
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        return model
