"""A selective state-space scan: step sizes, input and output matrices depend on the token."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, state):
        super().__init__()
        self.log_a = nn.Parameter(torch.rand(dim, state))
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x, delta, b, c):
        delta = F.softplus(delta)
        rate, state, outputs = -self.log_a.exp(), x.new_zeros(x.shape[0], *self.log_a.shape), []
        for step in range(x.shape[1]):
            size = delta[:, step, :, None]
            state = torch.exp(size * rate) * state + size * b[:, step, None] * x[:, step, :, None]
            outputs.append((state * c[:, step, None]).sum(dim=-1))
        return torch.stack(outputs, dim=1) + self.skip * x


TARGET = "cuda"
SIZES = {"cuda": (32, 64, 8192, 16), "cpu": (1, 32, 256, 8)}
batch, length, dim, state = SIZES[TARGET]


def get_inputs():
    x, delta = torch.randn(batch, length, dim), torch.randn(batch, length, dim)
    return [x, delta, torch.randn(batch, length, state), torch.randn(batch, length, state)]


def get_init_inputs():
    return [dim, state]
