"""A 3x3x3 convolution over video."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv3d(channels, out, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


TARGET = "cuda"
SIZES = {"cuda": (8, 32, 64, 16, 56, 56), "cpu": (1, 8, 16, 8, 16, 16)}
batch, channels, out, depth, height, width = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs():
    return [channels, out]
