"""Honest."""

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(torch.add(1, x, alpha=2))
