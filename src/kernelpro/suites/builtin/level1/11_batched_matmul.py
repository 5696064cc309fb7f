"""A batch of small matrix products."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


TARGET = "cuda"
SIZES = {"cuda": (128, 512, 512, 512), "cpu": (8, 128, 128, 128)}
batch, m, k, n = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, m, k), torch.randn(batch, k, n)]


def get_init_inputs():
    return []
