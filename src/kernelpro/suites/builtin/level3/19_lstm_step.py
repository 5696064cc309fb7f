"""One step of an LSTM: both products, four gates, the new state and cell."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.input, self.hidden = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim, bias=False)

    def forward(self, x, h, c):
        i, f, g, o = (self.input(x) + self.hidden(h)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


TARGET = "cuda"
SIZES = {"cuda": (4096, 1024), "cpu": (64, 192)}
batch, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, dim) for _ in range(3)]


def get_init_inputs():
    return [dim]
