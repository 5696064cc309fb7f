"""A state-space layer in its chunked form: attention inside a chunk, a recurrence over chunks."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk

    def forward(self, x, log_decay, b, c):
        x, log_decay, b, c = (part.unflatten(1, (-1, self.chunk)) for part in (x, log_decay, b, c))
        total = torch.cumsum(log_decay, dim=2)
        reach = torch.exp(total[:, :, :, None] - total[:, :, None]).permute(0, 1, 4, 2, 3).tril()
        inside = torch.einsum("zcin,zcjn,zchij,zcjhp->zcihp", c, b, reach, x)
        left = torch.exp(total[:, :, -1:] - total)
        states = torch.einsum("zcjn,zcjh,zcjhp->zchpn", b, left, x)
        carried, before = torch.zeros_like(states[:, 0]), []
        for index in range(states.shape[1]):
            before.append(carried)
            carried = carried * total[:, index, -1].exp()[:, :, None, None] + states[:, index]
        across = torch.einsum("zcin,zchpn,zcih->zcihp", c, torch.stack(before, dim=1), torch.exp(total))
        return (inside + across).flatten(1, 2)


TARGET = "cuda"
SIZES = {"cuda": (16, 2048, 16, 64, 64, 128), "cpu": (1, 256, 4, 32, 16, 64)}
batch, length, heads, dim, state, chunk = SIZES[TARGET]


def get_inputs():
    x, log_decay = torch.randn(batch, length, heads, dim), -0.05 * torch.rand(batch, length, heads)
    return [x, log_decay, torch.randn(batch, length, state), torch.randn(batch, length, state)]


def get_init_inputs():
    return [chunk]
