"""Every group divided by its largest magnitude."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x / x.abs().amax(dim=1, keepdim=True)


groups, size = 16, 4194304


def get_inputs():
    return [torch.randn(groups, size)]


def get_init_inputs():
    return []
