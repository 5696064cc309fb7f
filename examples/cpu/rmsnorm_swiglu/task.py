"""RMSNorm, then SwiGLU over the two halves of the features."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.weight
        gate, up = normed.chunk(2, dim=-1)
        return F.silu(gate) * up


rows, dim = 1024, 2048


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
