"""Causal attention whose keys and values are kept as one small latent vector a token."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, latent, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.down = nn.Linear(dim, latent, bias=False)
        self.weight = nn.Parameter(torch.randn(latent))
        self.up = nn.Linear(latent, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        latent = F.rms_norm(self.down(x), self.weight.shape, self.weight, eps=1e-6)
        parts = (self.q(x), *self.up(latent).chunk(2, dim=-1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


TARGET = "cuda"
SIZES = {"cuda": (4, 1024, 1024, 256, 16), "cpu": (1, 128, 256, 64, 4)}
batch, length, dim, latent, heads = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim)]


def get_init_inputs():
    return [dim, latent, heads]
