"""Causal attention with rotary embedding in which several query heads share a key head; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.q = nn.Linear(dim, dim, bias=False, dtype=dtype)
        self.kv = nn.Linear(dim, 2 * groups * self.size, bias=False, dtype=dtype)
        self.out = nn.Linear(dim, dim, bias=False, dtype=dtype)

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)

    def rotate(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def forward(self, x, cos, sin):
        k, v = self.kv(x).chunk(2, dim=-1)
        q, k, v = self.split(self.q(x), self.heads), self.split(k, self.groups), self.split(v, self.groups)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


TARGET = "cuda"
SIZES = {"cuda": (4, 2048, 2048, 16, 4, torch.bfloat16), "cpu": (1, 128, 256, 8, 2, torch.float32)}
batch, length, dim, heads, groups, dtype = SIZES[TARGET]


def get_inputs():
    angles = torch.rand(length, dim // heads // 2) * 6.28
    x = torch.randn(batch, length, dim, dtype=dtype)
    return [x, angles.cos().to(dtype), angles.sin().to(dtype)]


def get_init_inputs():
    return [dim, heads, groups]
