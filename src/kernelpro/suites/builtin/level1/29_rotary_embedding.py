"""Rotary position embedding over the two halves of each head."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


TARGET = "cuda"
SIZES = {"cuda": (8, 32, 2048, 128), "cpu": (2, 8, 256, 64)}
batch, heads, length, dim = SIZES[TARGET]


def get_inputs():
    angles = torch.rand(length, dim // 2) * 6.28
    return [torch.randn(batch, heads, length, dim), angles.cos(), angles.sin()]


def get_init_inputs():
    return []
