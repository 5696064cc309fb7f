"""A pre-norm transformer block: causal attention and a GELU network, each on a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        parts = self.qkv(self.first(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


TARGET = "cuda"
SIZES = {"cuda": (4, 1024, 1024, 16), "cpu": (1, 64, 256, 4)}
batch, length, dim, heads = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim)]


def get_init_inputs():
    return [dim, heads]
