"""Attention without softmax: a positive feature map, and sums instead of scores."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        summary, total = k.transpose(-2, -1) @ v, k.sum(dim=-2)
        return q @ summary / (q * total.unsqueeze(-2)).sum(dim=-1, keepdim=True)


TARGET = "cuda"
SIZES = {"cuda": (8, 16, 4096, 64), "cpu": (1, 4, 512, 64)}
batch, heads, length, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, heads, length, dim) for _ in range(3)]


def get_init_inputs():
    return []
