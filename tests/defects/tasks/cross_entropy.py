"""Mean cross entropy over a large vocabulary."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels)


rows, vocabulary = 4096, 32000


def get_inputs():
    return [torch.randn(rows, vocabulary), torch.randint(0, vocabulary, (rows,))]


def get_init_inputs():
    return []
