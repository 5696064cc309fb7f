"""Batch normalisation by the batch's own statistics."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


TARGET = "cuda"
SIZES = {"cuda": (128, 256, 32, 32), "cpu": (8, 32, 28, 28)}
batch, channels, height, width = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
