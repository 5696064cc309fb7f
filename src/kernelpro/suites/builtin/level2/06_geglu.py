"""GELU-gated linear unit, one product and two halves; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.linear = nn.Linear(dim, 2 * hidden, dtype=dtype)

    def forward(self, x):
        gate, up = self.linear(x).chunk(2, dim=-1)
        return F.gelu(gate) * up


TARGET = "cuda"
SIZES = {"cuda": (8192, 2048, 8192, torch.bfloat16), "cpu": (128, 256, 512, torch.float32)}
rows, dim, hidden, dtype = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, dim, dtype=dtype)]


def get_init_inputs():
    return [dim, hidden]
