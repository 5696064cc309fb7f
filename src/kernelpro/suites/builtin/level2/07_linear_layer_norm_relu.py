"""A linear layer, layer normalisation, ReLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return F.relu(F.layer_norm(self.linear(x), self.weight.shape, self.weight, self.bias))


TARGET = "cuda"
SIZES = {"cuda": (16384, 1024), "cpu": (512, 256)}
rows, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
