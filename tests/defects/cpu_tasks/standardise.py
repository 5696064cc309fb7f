"""Pixels brought to the unit interval, then shifted and scaled by channel."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mean = nn.Parameter(torch.rand(channels))
        self.deviation = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x, span):
        return (x / span - self.mean[:, None]) / self.deviation[:, None] / span


channels, pixels = 64, 1 << 16


def get_inputs():
    return [torch.rand(channels, pixels) * 255, torch.rand(1) + 2]


def get_init_inputs():
    return [channels]
