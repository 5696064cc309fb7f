"""The transpose of one matrix added to another."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, z):
        return x.t() + z


dim = 2048


def get_inputs():
    return [torch.randn(dim, dim), torch.randn(dim, dim)]


def get_init_inputs():
    return []
