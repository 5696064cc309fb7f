import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise ValueError("not today")
