"""A transposed product with a long sum, as in a weight's gradient."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a.T @ b


TARGET = "cuda"
SIZES = {"cuda": (16384, 2048, 2048), "cpu": (4096, 192, 192)}
k, m, n = SIZES[TARGET]


def get_inputs():
    return [torch.randn(k, m), torch.randn(k, n)]


def get_init_inputs():
    return []
