"""256 multiply-adds for each element: bound by arithmetic once they are one kernel."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        for _ in range(128):
            x = (x * 1.01 + 0.01) * 0.99 - 0.01
        return x


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
