"""A SwiGLU block with int8 weights on few rows, as in decoding; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def linear(self, x, weight, scale):
        return F.linear(x, weight.to(x.dtype)) * scale

    def forward(self, x, gate, gate_scale, up, up_scale, down, down_scale):
        hidden = F.silu(self.linear(x, gate, gate_scale)) * self.linear(x, up, up_scale)
        return self.linear(hidden, down, down_scale)


TARGET = "cuda"
SIZES = {"cuda": (32, 5120, 13824, torch.bfloat16), "cpu": (8, 256, 704, torch.float32)}
rows, dim, hidden, dtype = SIZES[TARGET]


def get_inputs():
    def quantised(out, inner):
        scale = (0.5 + torch.rand(out)) / (73 * inner**0.5)
        return [torch.randint(-127, 128, (out, inner), dtype=torch.int8), scale.to(dtype)]

    x = torch.randn(rows, dim, dtype=dtype)
    return [x, *quantised(hidden, dim), *quantised(hidden, dim), *quantised(dim, hidden)]


def get_init_inputs():
    return []
