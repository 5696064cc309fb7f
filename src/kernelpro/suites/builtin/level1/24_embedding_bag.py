"""Weighted sums of rows of a large table."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, entries, dim):
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, dim))

    def forward(self, ids, weights):
        return F.embedding_bag(ids, self.table, per_sample_weights=weights, mode="sum")


TARGET = "cuda"
SIZES = {"cuda": (100000, 128, 16384, 64), "cpu": (4000, 64, 4096, 16)}
entries, dim, bags, items = SIZES[TARGET]


def get_inputs():
    return [torch.randint(0, entries, (bags, items)), torch.rand(bags, items)]


def get_init_inputs():
    return [entries, dim]
