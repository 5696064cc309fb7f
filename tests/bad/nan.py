import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.tanh(2 * x + 1)
        y[3, 5] = float("nan")
        return y
