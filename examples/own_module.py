"""A module of your own, from Python: a kernel for it, with proof.

python examples/own_module.py AUTHOR [MODEL]     who writes, and who answers: see docs/optimize.md and docs/models.md
"""

import sys

import torch
from torch import nn

import kernelpro


class Head(nn.Module):
    """Bias, GELU, and a softmax at a temperature that is learnt."""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))
        self.temperature = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x):
        return torch.softmax(nn.functional.gelu(x + self.bias) / self.temperature, dim=-1)


def main():
    author, model = (*sys.argv[1:], "")[:2]
    examples = [torch.randn(1024, 1024)]
    found = kernelpro.optimize(
        Head(1024), examples, init_inputs=[1024], author=author, model=model, report=lambda kind, data: print(kind, data)
    )
    print(found.verdict.reason if found.verdict else found.outcome.reason)
    print(found.source or "", f"\nthe run: {found.run}")


if __name__ == "__main__":
    main()
