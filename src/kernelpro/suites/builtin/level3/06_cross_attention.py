"""Image tokens that attend to a short text, as in diffusion networks."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, context, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(context, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, text):
        parts = (self.q(x), *self.kv(text).chunk(2, dim=-1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


TARGET = "cuda"
SIZES = {"cuda": (8, 4096, 512, 77, 768, 8), "cpu": (1, 256, 128, 32, 96, 4)}
batch, length, dim, words, context, heads = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim), torch.randn(batch, words, context)]


def get_init_inputs():
    return [dim, context, heads]
