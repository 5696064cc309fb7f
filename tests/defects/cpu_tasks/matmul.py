"""A product of square matrices."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


dim = 512


def get_inputs():
    return [torch.randn(dim, dim), torch.randn(dim, dim)]


def get_init_inputs():
    return []
