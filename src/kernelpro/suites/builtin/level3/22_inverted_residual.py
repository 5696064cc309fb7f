"""A mobile block: wider, depthwise, squeeze and excitation, narrow again, on a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Conv2d(channels, wide, 1)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.squeeze, self.excite = nn.Linear(wide, channels), nn.Linear(channels, wide)
        self.project = nn.Conv2d(wide, channels, 1)

    def forward(self, x):
        inner = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        gate = torch.sigmoid(4 * self.excite(F.relu(self.squeeze(inner.mean(dim=(2, 3))))))
        return x + self.project(inner * gate[:, :, None, None])


TARGET = "cuda"
SIZES = {"cuda": (64, 32, 112, 112), "cpu": (1, 16, 32, 32)}
batch, channels, height, width = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
