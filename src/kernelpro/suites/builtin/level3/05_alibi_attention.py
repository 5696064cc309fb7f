"""Causal attention with linear biases by distance, a slope for each head."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v):
        heads, length = q.shape[1], q.shape[2]
        place = torch.arange(length, device=q.device)
        slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=q.device) / heads).to(q.dtype)
        distance = place[:, None] - place
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 - slopes[:, None, None] * distance
        return torch.softmax(scores.masked_fill(distance < 0, float("-inf")), dim=-1) @ v


TARGET = "cuda"
SIZES = {"cuda": (8, 16, 1024, 64), "cpu": (1, 4, 160, 64)}
batch, heads, length, dim = SIZES[TARGET]


def get_inputs():
    return [torch.randn(batch, heads, length, dim) for _ in range(3)]


def get_init_inputs():
    return []
