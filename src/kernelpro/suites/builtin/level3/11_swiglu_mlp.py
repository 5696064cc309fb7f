"""The feed-forward block of today's language models; bfloat16 on a GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False, dtype=dtype)
        self.up = nn.Linear(dim, hidden, bias=False, dtype=dtype)
        self.down = nn.Linear(hidden, dim, bias=False, dtype=dtype)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


TARGET = "cuda"
SIZES = {"cuda": (4096, 4096, 11008, torch.bfloat16), "cpu": (64, 256, 704, torch.float32)}
rows, dim, hidden, dtype = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, dim, dtype=dtype)]


def get_init_inputs():
    return [dim, hidden]
