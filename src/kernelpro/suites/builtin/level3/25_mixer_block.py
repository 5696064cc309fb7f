"""Networks over patches, then over channels, each on a residual."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, patches, dim):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.across = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.within = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norms[1](x))


TARGET = "cuda"
SIZES = {"cuda": (32, 196, 768), "cpu": (1, 64, 192)}
batch, patches, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, patches, dim)]


def get_init_inputs():
    return [patches, dim]
