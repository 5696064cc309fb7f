"""LayerNorm with weight and bias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, eps=1e-5)


rows, dim = 7168, 1024


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
