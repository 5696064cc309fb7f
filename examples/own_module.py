"""Optimize a module of your own from Python.

python examples/own_module.py            the playbook writes the kernels: about two minutes on two cores
python examples/own_module.py MODEL      an LLM writes them: see docs/guides/llm.md
"""

import sys

import torch
from torch import nn

import kernelpro


class Head(nn.Module):
    """Bias, GELU, and a softmax with a learned temperature."""

    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))
        self.temperature = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x):
        return torch.softmax(nn.functional.gelu(x + self.bias) / self.temperature, dim=-1)


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.manual_seed(0)  # the same weights and inputs continue the same run
    inputs = [torch.randn(1024, 1024)]
    try:
        result = kernelpro.optimize(Head(1024), inputs, init_inputs=[1024], model=model, candidates=6)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues the run")
    print(f"report: {result.report}")  # the winner was shown on stderr


if __name__ == "__main__":
    main()
