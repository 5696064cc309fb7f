"""The sum of each column, as in a bias's gradient."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=0)


TARGET = "cuda"
SIZES = {"cuda": (32768, 8192), "cpu": (4096, 1024)}
rows, cols = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
