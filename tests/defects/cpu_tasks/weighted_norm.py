"""The norm of each row, weighted by column."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        return (x * self.weight).norm(dim=1)


rows, dim = 16384, 1024


def get_inputs():
    return [torch.rand(rows, dim)]


def get_init_inputs():
    return [dim]
