"""A lower triangular matrix times a vector."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, x):
        return a @ x


dim = 6144


def get_inputs():
    return [torch.rand(dim, dim).tril(), torch.rand(dim)]


def get_init_inputs():
    return []
