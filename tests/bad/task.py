"""Twice the input, plus one, through a tanh: small, so that only what is bad shows."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(2 * x + 1)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
