"""Variance over the middle dimension."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.var(dim=1)


TARGET = "cuda"
SIZES = {"cuda": (32, 2048, 2048), "cpu": (4, 256, 512)}
batch, length, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim)]


def get_init_inputs():
    return []
