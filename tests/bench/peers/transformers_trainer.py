"""transformers' Trainer, as in https://huggingface.co/docs/transformers/trainer

Its DataLoader reads a whole batch at once, which is faster than the code on its pages.
"""

import os

import torch.nn.functional as F
import training
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from turn import Turns


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = training.net

    def forward(self, images, labels):
        logits = self.net(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Images:
    def __len__(self):
        return len(training.data)

    def __getitems__(self, indices):
        return {"images": training.data.inputs[indices], "labels": training.data.targets[indices]}


class Count(TrainerCallback):
    def on_train_begin(self, *_, **__):
        self.turns = Turns()

    def on_step_end(self, *_, **__):
        self.turns.step()


Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=os.environ["BENCH_FOLDER"],
        per_device_train_batch_size=training.BATCH,
        max_steps=10**7,
        max_grad_norm=training.CLIP,
        lr_scheduler_type="cosine",
        logging_steps=training.LOG_STEPS,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    ),
    train_dataset=Images(),
    data_collator=lambda batch: batch,
    optimizers=(training.optimizer_of(training.net), None),
    callbacks=[Count()],
).train()
