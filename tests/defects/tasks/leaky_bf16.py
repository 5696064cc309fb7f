"""Sixteen leaky steps of an integrator in bfloat16."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(steps, dtype=torch.bfloat16))

    def forward(self, x):
        h = x
        for decay in self.decay:
            h = h * decay + x
        return h


rows, cols, steps = 8192, 8192, 16


def get_inputs():
    return [torch.randn(rows, cols, dtype=torch.bfloat16)]


def get_init_inputs():
    return [steps]
