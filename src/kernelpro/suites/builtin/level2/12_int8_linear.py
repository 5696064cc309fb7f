"""A linear layer with int8 weights and a scale for each output; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, weight, scale):
        return F.linear(x, weight.to(x.dtype) * scale[:, None])


TARGET = "cuda"
SIZES = {"cuda": (512, 4096, 11008, torch.bfloat16), "cpu": (16, 512, 1024, torch.float32)}
rows, dim, out, dtype = SIZES[TARGET]


def get_inputs():
    weight = torch.randint(-127, 128, (out, dim), dtype=torch.int8)
    scale = (0.5 + torch.rand(out)) / (73 * dim**0.5)
    return [torch.randn(rows, dim, dtype=dtype), weight, scale.to(dtype)]


def get_init_inputs():
    return []
