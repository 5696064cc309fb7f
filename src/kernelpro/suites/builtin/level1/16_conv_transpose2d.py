"""A transposed convolution that doubles an image."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out, 4, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x)


TARGET = "cuda"
SIZES = {"cuda": (32, 128, 64, 64, 64), "cpu": (1, 32, 16, 24, 24)}
batch, channels, out, height, width = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels, out]
