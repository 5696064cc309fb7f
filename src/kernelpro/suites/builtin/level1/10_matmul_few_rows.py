"""A linear layer on few rows, as in decoding: the weights are the traffic; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, dim, dtype=dtype) * dim**-0.5)

    def forward(self, x):
        return F.linear(x, self.weight)


TARGET = "cuda"
SIZES = {"cuda": (16, 8192, 28672, torch.bfloat16), "cpu": (4, 1024, 4096, torch.float32)}
rows, dim, out, dtype = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, dim, dtype=dtype)]


def get_init_inputs():
    return [dim, out]
