"""Bias and ReLU in bfloat16."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols, dtype=torch.bfloat16))

    def forward(self, x):
        return torch.relu(x + self.bias)


rows, cols = 16384, 8192


def get_inputs():
    return [torch.randn(rows, cols, dtype=torch.bfloat16)]


def get_init_inputs():
    return [cols]
