"""A chain of activations over a large tensor, one kernel an operation in eager PyTorch."""

import torch
from torch import nn

ROWS = 8192
COLUMNS = 4096


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(1.702 * x)
        return torch.relu(x) * gate + 0.1 * torch.tanh(x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
