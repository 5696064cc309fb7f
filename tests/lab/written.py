"""Tasks of a few words for tests."""

from __future__ import annotations

TASK = """
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, *x):
        {forward}
def get_inputs(): return {inputs}
def get_init_inputs(): return []
"""


def source(forward: str, inputs: str, init: str = "pass") -> str:
    """A task's text; statements of `forward` may be parted by `; `."""
    return TASK.format(forward=forward.replace("; ", "\n        "), inputs=inputs, init=init)
