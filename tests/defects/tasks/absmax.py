"""Largest magnitude of a large tensor."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.abs().max()


count = 67108864


def get_inputs():
    return [torch.randn(count)]


def get_init_inputs():
    return []
