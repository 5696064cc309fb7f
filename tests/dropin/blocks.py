"""A user's module, its kernel, and models that contain it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from kernelpro import api
from kernelpro.dropin.module import optimize_module
from kernelpro.pools import winners

GAIN = 1.0
CONFIG = SimpleNamespace(shift=0.5)


class Block(nn.Module):
    """Norm, activation and settings of all kinds."""

    def __init__(self, width: int, act: str = "tanh"):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)
        self.act = act
        self.options = {"scale": 2.0}

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(x * self.w) * GAIN + CONFIG.shift
        if bias is not None:
            y = y + bias
        return (torch.tanh(y) if self.act == "tanh" else torch.relu(y)) * self.options["scale"]


KERNEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.empty(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return torch.tanh(self.norm(x * self.w) + 0.5) * 2.0
"""


class Model(nn.Module):
    """Three blocks with weights of their own."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"block": Block(width), "out": nn.Linear(width, width)}) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["out"](layer["block"](x))
        return x


def optimized(block: Block | None = None, kernel: str = KERNEL, strict: bool = False) -> Any:
    """An optimized block."""
    torch.manual_seed(1)
    block = block or Block(16).eval()
    task = api.load_task(block, [torch.randn(4, 16)])
    (spec,) = winners.describe_winner(task, [kernel], "cpu", None)
    assert spec.init == (16,), "inferred from the module"
    return optimize_module(block, winners.winner_factory(spec, kernel, None), strict)


def this_module() -> Any:
    """This module, to change its globals."""
    return sys.modules[__name__]


HERE = Path(__file__).parent
