"""A user's module with its own weights, some of them integers."""

from __future__ import annotations

import torch


class Quantised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(64) + 0.5)
        self.register_buffer("weight", torch.randint(-8, 8, (64, 64), dtype=torch.int8))
        self.register_buffer("calls", torch.zeros(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.float() * self.scale
