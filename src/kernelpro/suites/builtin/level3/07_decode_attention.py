"""One new token against a cache of keys and values of different lengths; bfloat16 on a GPU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v, lengths):
        beyond = torch.arange(k.shape[2], device=k.device) >= lengths[:, None]
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(
            beyond[:, None, None], float("-inf")
        )
        return torch.softmax(scores, dim=-1) @ v


TARGET = "cuda"
SIZES = {"cuda": (64, 8, 4, 4096, 128, torch.bfloat16), "cpu": (4, 2, 4, 512, 64, torch.float32)}
batch, groups, share, length, dim, dtype = SIZES[TARGET]


def get_inputs():
    q = torch.randn(batch, groups, share, dim, dtype=dtype)
    k, v = (torch.randn(batch, groups, length, dim, dtype=dtype) for _ in range(2))
    return [q, k, v, torch.randint(15 * length // 16, length + 1, (batch,))]


def get_init_inputs():
    return []
