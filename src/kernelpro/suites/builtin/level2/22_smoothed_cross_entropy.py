"""Cross entropy with label smoothing and a penalty on the normaliser, by row."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, logits, labels):
        normaliser = torch.logsumexp(logits, dim=-1)
        chosen = logits.gather(-1, labels[:, None]).squeeze(-1)
        return normaliser - 0.9 * chosen - 0.1 * logits.mean(dim=-1) + 1e-3 * normaliser.square()


TARGET = "cuda"
SIZES = {"cuda": (8192, 16384), "cpu": (256, 4096)}
rows, vocabulary = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, vocabulary), torch.randint(0, vocabulary, (rows,))]


def get_init_inputs():
    return []
