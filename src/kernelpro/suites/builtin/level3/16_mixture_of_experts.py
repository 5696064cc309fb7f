"""SwiGLU experts, two for each token, weighted by the router's choice."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, dim, 2 * hidden) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, dim) * hidden**-0.5)

    def forward(self, x, chosen, weights):
        result = torch.zeros_like(x)
        for index in range(self.down.shape[0]):
            rows, place = torch.where(chosen == index)
            gate, up = (x[rows] @ self.gate_up[index]).chunk(2, dim=-1)
            mixed = (F.silu(gate) * up) @ self.down[index]
            result = result.index_add(0, rows, mixed * weights[rows, place].unsqueeze(-1))
        return result


TARGET = "cuda"
SIZES = {"cuda": (4096, 1024, 2048, 8), "cpu": (128, 128, 256, 4)}
tokens, dim, hidden, experts = SIZES[TARGET]


def get_inputs():
    scores, chosen = torch.randn(tokens, experts).topk(2, dim=-1)
    return [torch.randn(tokens, dim), chosen, torch.softmax(scores, dim=-1)]


def get_init_inputs():
    return [dim, hidden, experts]
