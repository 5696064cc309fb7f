"""What reaches step i from step j when each step in between decays: the mask of a gated linear attention."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, log_decay):
        total = torch.cumsum(log_decay, dim=-1)
        return torch.exp(total[:, :, None] - total[:, None, :]).tril()


TARGET = "cuda"
SIZES = {"cuda": (64, 1024), "cpu": (8, 192)}
batch, length = SIZES[TARGET]


def get_inputs():
    return [-0.05 * torch.rand(batch, length)]


def get_init_inputs():
    return []
