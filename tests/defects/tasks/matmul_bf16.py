"""Product of two square bfloat16 matrices."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


size = 4096


def get_inputs():
    return [torch.randn(size, size, dtype=torch.bfloat16), torch.randn(size, size, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
