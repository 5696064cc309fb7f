"""A cheat that claims 5x: it caches results by the addresses of the inputs and returns them again."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(dim))
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))
        self.results = {}

    def forward(self, x, residual):
        key = x.data_ptr(), residual.data_ptr()
        if key not in self.results:
            summed = x + self.gain * residual
            self.results[key] = F.layer_norm(summed, self.weight.shape, self.weight, self.bias, eps=1e-5)
        return self.results[key]
