"""The first file: a layer with settings, and a model that contains it three times."""

from __future__ import annotations

import torch
from torch import nn

from two_files.scaling import inverse_rms


class RootNorm(nn.Module):
    """RMSNorm with an optional activation."""

    def __init__(self, width: int, act: str = "none"):
        super().__init__()
        self.weight, self.act, self.eps = nn.Parameter(torch.randn(width)), act, 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * inverse_rms(x, self.eps) * self.weight
        return torch.relu(y) if self.act == "relu" else y


class Stack(nn.Module):
    """Three norms with weights of their own."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": RootNorm(width), "out": nn.Linear(width, width)}) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["out"](layer["norm"](x))
        return x
