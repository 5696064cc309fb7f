"""Each head normalised by its root mean square, then rotated: queries and keys of today's models."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x, cos, sin):
        normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight
        first, second = normed.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


TARGET = "cuda"
SIZES = {"cuda": (4, 4096, 32, 128), "cpu": (1, 512, 8, 64)}
batch, length, heads, dim = SIZES[TARGET]


def get_inputs():
    angles = torch.rand(length, 1, dim // 2) * 6.28
    return [torch.randn(batch, length, heads, dim), angles.cos(), angles.sin()]


def get_init_inputs():
    return [dim]
