"""A module of your own, from Python: a kernel for it, with proof.

python examples/own_module.py            the playbook writes
python examples/own_module.py MODEL      a model does: see docs/models.md
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
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    examples = [torch.randn(1024, 1024)]
    found = kernelpro.optimize(Head(1024), examples, init_inputs=[1024], model=model, report=lambda kind, data: print(kind, data))
    print(found.verdict.reason if found.verdict else found.outcome.reason)
    print(found.source or "", f"\nthe run: {found.run}")


if __name__ == "__main__":
    main()
