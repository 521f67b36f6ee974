"""Batches for a model, from the trainer's loader and from those of its peers.

python reading.py tokens muster|peer      # 12 windows of 1,024 tokens from a file, as nanoGPT takes them
python reading.py memory muster|peer      # 128 images of 28 x 28, kept as bytes
python reading.py jpeg muster|peer        # 32 photographs, cut to 224 x 224 and flipped at random

A peer of `memory` and `jpeg` is a DataLoader with torchvision's transforms v2.
BENCH_WORKERS=2: each loader has two processes.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from turn import Turns

from trainer.data.augment import Augmentation
from trainer.data.loader import Loader
from trainer.data.order import Order, training_shares
from trainer.data.sets import InMemory, Transformed
from trainer.plan.batches import Batches
from trainer.tasks.imagefolder import Folder
from trainer.tasks.parts.images import Images
from trainer.tasks.parts.token_files import Windows

FOLDER = Path(os.environ["BENCH_FOLDER"])
WORKERS = int(os.environ.get("BENCH_WORKERS", "0"))
LENGTH = 1024
BATCH = {"tokens": 12, "memory": 128, "jpeg": 32}
SCALE = [v2.ToDtype(torch.float32, scale=True)]


def main(kind, whose):
    random = np.random.default_rng(0)
    batches = globals()[f"{kind}_{whose}"](random, BATCH[kind])
    turns = Turns()
    for _ in batches:
        turns.step()


def loaded(data, batch):
    """Return the trainer's batches without end."""
    keyed = not isinstance(data, InMemory) or isinstance(data, Transformed)
    shares = training_shares(
        Order(0, len(data), 10**12, keyed=keyed), Batches(batch, batch, 1, 1), 0, start=0
    )
    return Loader(data, device=torch.device("cpu"), workers=WORKERS)(shares)


def again(data, batch):
    """Return a DataLoader's batches without end; it also reads ahead over the ends of short epochs."""
    endless = RandomSampler(data, num_samples=10**12)
    return DataLoader(data, batch, sampler=endless, num_workers=WORKERS)


def tokens(random):
    file = FOLDER / "train.bin"
    random.integers(0, 50_257, 10_000_000, dtype=np.uint16).tofile(file)
    return file


def tokens_muster(random, batch):
    return loaded(Windows(tokens(random), "uint16", length=LENGTH, vocabulary=50_304), batch)


def tokens_peer(random, batch):
    """Yield windows at random places. The file is mapped again for each batch, as in nanoGPT."""
    file = tokens(random)
    while True:
        found = np.memmap(file, np.uint16, "r")
        starts = torch.randint(len(found) - LENGTH, (batch,)).tolist()
        yield tuple(
            torch.stack([torch.from_numpy(found[n : n + LENGTH].astype(np.int64)) for n in shifted])
            for shifted in (starts, [n + 1 for n in starts])
        )


def pixels(random):
    return random.integers(0, 256, (20_000, 28, 28), dtype=np.uint8)


def memory_muster(random, batch):
    images = torch.from_numpy(pixels(random)).unsqueeze(1)
    normalise = Augmentation(28, (0.1307,), (0.3081,))
    return loaded(Images(images, torch.zeros(len(images), dtype=torch.long), normalise), batch)


def memory_peer(random, batch):
    transform = v2.Compose([v2.ToImage(), *SCALE, v2.Normalize((0.1307,), (0.3081,))])

    class InBytes(Dataset):
        images = pixels(random)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return transform(Image.fromarray(self.images[index])), 0

    return again(InBytes(), batch)


def photographs(random):
    """Write 64 photographs' worth of JPEG, 500 x 375, and return their folder."""
    (FOLDER / "images" / "one").mkdir(parents=True)
    for number in range(64):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(
            FOLDER / "images" / "one" / f"{number}.jpg", quality=90
        )
    return FOLDER / "images"


def jpeg_muster(random, batch):
    return loaded(Folder(photographs(random), ["one"], 224), batch)


def jpeg_peer(random, batch):
    cut = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    normalise = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    transform = v2.Compose([*cut, *SCALE, normalise, v2.ToPureTensor()])
    return again(ImageFolder(photographs(random), transform), batch)


if __name__ == "__main__":  # a loader's process imports this file
    main(*sys.argv[1:])
