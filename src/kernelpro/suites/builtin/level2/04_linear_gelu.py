"""A linear layer and GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.linear = nn.Linear(dim, out)

    def forward(self, x):
        return F.gelu(self.linear(x))


TARGET = "cuda"
SIZES = {"cuda": (8192, 4096, 4096), "cpu": (256, 512, 512)}
rows, dim, out = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim, out]
