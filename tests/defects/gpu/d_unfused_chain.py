# defect: unfused_chain | task: gelu_bias | language: torch | static: no | expect: 6x | summary: nine element-wise operators, each with a pass through memory of its own
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        v = x + self.bias
        return 0.5 * v * (1.0 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))
