"""Images cut into patches, projected, placed and normalised: the front of a vision transformer."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size, patch, dim):
        super().__init__()
        self.project = nn.Conv2d(3, dim, patch, stride=patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, images):
        return self.norm(self.project(images).flatten(2).transpose(1, 2) + self.places)


TARGET = "cuda"
SIZES = {"cuda": (128, 224, 16, 768), "cpu": (2, 96, 16, 192)}
batch, size, patch, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [size, patch, dim]
