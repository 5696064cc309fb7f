"""Mean square of the real and of the imaginary parts, which lie interleaved, of every row."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.square().mean(dim=1)


rows, cols = 8192, 4096


def get_inputs():
    return [torch.randn(rows, cols, 2)]


def get_init_inputs():
    return []
