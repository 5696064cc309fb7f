"""Neighbours averaged by weight, a linear layer, ReLU, on a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x, source, target, weight):
        gathered = torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])
        return x + F.relu(self.linear(gathered))


TARGET = "cuda"
SIZES = {"cuda": (200000, 2000000, 128), "cpu": (2000, 16000, 64)}
nodes, edges, dim = SIZES[TARGET]


def get_inputs():
    source, target = torch.randint(0, nodes, (2, edges))
    return [torch.randn(nodes, dim), source, target, torch.rand(edges)]


def get_init_inputs():
    return [dim]
