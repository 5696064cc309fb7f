"""A module with a tensor outside its state_dict: a plain attribute, or a non-persistent buffer."""

from __future__ import annotations

import torch
from torch import nn


class Ramp(nn.Module):
    ramp: torch.Tensor

    def __init__(self, width: int, buffer: bool = False):
        super().__init__()
        self.linear, ramp = nn.Linear(width, width), torch.arange(1.0, width + 1)
        if buffer:
            self.register_buffer("ramp", ramp, persistent=False)
        else:
            self.ramp = ramp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x)) * self.ramp
