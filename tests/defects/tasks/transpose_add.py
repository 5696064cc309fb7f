"""The transpose of one matrix plus another."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return x.t() + y


size = 8192


def get_inputs():
    return [torch.randn(size, size), torch.randn(size, size)]


def get_init_inputs():
    return []
