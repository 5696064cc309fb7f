"""Euclidean norm of many short rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.linalg.vector_norm(x, dim=-1)


rows, cols = 262144, 256


def get_inputs():
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
