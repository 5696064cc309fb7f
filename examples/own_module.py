"""A module of your own, from Python: a kernel for it, with proof.

python examples/own_module.py            the playbook writes: about two minutes on two cores
python examples/own_module.py MODEL      a model does: see docs/guides/llm.md
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
    torch.manual_seed(0)  # the same module again is the same run again
    examples, limits = [torch.randn(1024, 1024)], kernelpro.Limits(candidates=6)
    try:
        found = kernelpro.optimize(Head(1024), examples, init_inputs=[1024], model=model, limits=limits)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on with what there is")
    print(found.verdict.reason if found.verdict else found.outcome.reason)
    print(f"the kernel and how it was found: {found.report}")


if __name__ == "__main__":
    main()
