"""Multi-head self-attention with its projections."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


TARGET = "cuda"
SIZES = {"cuda": (8, 1024, 1024, 16), "cpu": (1, 128, 256, 4)}
batch, length, dim, heads = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim)]


def get_init_inputs():
    return [dim, heads]
