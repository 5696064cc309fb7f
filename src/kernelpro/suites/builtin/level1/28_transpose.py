"""A batch of matrices, transposed in memory."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()


TARGET = "cuda"
SIZES = {"cuda": (64, 2048, 1024), "cpu": (4, 512, 512)}
batch, rows, cols = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, rows, cols)]


def get_init_inputs():
    return []
