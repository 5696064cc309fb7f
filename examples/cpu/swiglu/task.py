"""SwiGLU's gate: silu(gate) * up, element-wise."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, gate, up):
        return F.silu(gate) * up


TARGET = "cuda"
SIZES = {"cuda": (8192, 8192), "cpu": (1024, 2048)}
rows, cols = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return []
