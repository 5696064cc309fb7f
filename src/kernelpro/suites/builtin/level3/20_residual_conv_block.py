"""Two 3x3 convolutions with folded batch normalisation on a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(2, channels, 1, 1))

    def forward(self, x):
        inner = F.relu(self.first(x) * self.scale[0])
        return F.relu(x + self.second(inner) * self.scale[1])


TARGET = "cuda"
SIZES = {"cuda": (64, 64, 56, 56), "cpu": (1, 32, 28, 28)}
batch, channels, height, width = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
