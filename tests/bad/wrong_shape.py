import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(2 * x + 1).flatten()
