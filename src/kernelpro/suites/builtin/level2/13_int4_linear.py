"""A linear layer with int4 weights, two in a byte, and a scale for each group of inputs; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, packed, scale):
        weight = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).to(x.dtype) - 8
        groups = weight.unflatten(1, (scale.shape[1], -1)) * scale[:, :, None]
        return F.linear(x, groups.flatten(1))


TARGET = "cuda"
SIZES = {"cuda": (64, 4096, 11008, 128, torch.bfloat16), "cpu": (8, 512, 768, 64, torch.float32)}
rows, dim, out, group, dtype = SIZES[TARGET]


def get_inputs():
    packed = torch.randint(0, 256, (out, dim // 2), dtype=torch.uint8)
    scale = (0.5 + torch.rand(out, dim // group)) / (4.6 * dim**0.5)
    return [torch.randn(rows, dim, dtype=dtype), packed, scale.to(dtype)]


def get_init_inputs():
    return []
