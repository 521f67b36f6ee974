"""The data of the examples: a file with a sample per line, whole numbers below 32."""

from pathlib import Path

import torch
from torch.utils.data import Dataset


class Rows(Dataset):
    """A line is read when it is needed, so a bad line fails the rank that reads it."""

    def __init__(self, file):
        self.lines = Path(file).read_text(encoding="utf-8").splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return torch.tensor([int(word) for word in self.lines[index].split()])


class Pairs(Rows):
    """The first seven numbers are the input, the last is to be learnt."""

    def __getitem__(self, index):
        row = super().__getitem__(index) / 32
        return row[:7], row[7:]
