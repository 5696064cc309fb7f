"""Embeddings of categories and a network over numbers, their pairwise products, and a network on top."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, entries, dim):
        super().__init__()
        self.tables = nn.Parameter(torch.randn(features, entries, dim))
        self.numbers = nn.Sequential(nn.Linear(16, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        pairs = features * (features + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, 1))

    def forward(self, numbers, categories):
        dense = self.numbers(numbers)
        looked_up = self.tables[torch.arange(categories.shape[1], device=categories.device), categories]
        vectors = torch.cat([dense.unsqueeze(1), looked_up], dim=1)
        i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=vectors.device)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, i, j]
        return self.top(torch.cat([dense, products], dim=1))


TARGET = "cuda"
SIZES = {"cuda": (65536, 26, 10000, 64), "cpu": (256, 8, 200, 32)}
batch, features, entries, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, 16), torch.randint(0, entries, (batch, features))]


def get_init_inputs():
    return [features, entries, dim]
