"""A gated recurrence h = a * h + (1 - a) * x over time, all states returned."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, gate):
        keep = torch.sigmoid(gate)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = keep[:, step] * state + (1 - keep[:, step]) * x[:, step]
            states.append(state)
        return torch.stack(states, dim=1)


TARGET = "cuda"
SIZES = {"cuda": (64, 64, 4096), "cpu": (4, 32, 512)}
batch, length, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, length, dim), torch.randn(batch, length, dim)]


def get_init_inputs():
    return []
