"""Linear layer with bias followed by exact GELU; the product is in TF32."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        return F.gelu(self.linear(x))


batch, features_in, features_out = 2048, 4096, 4096


def get_inputs():
    return [torch.randn(batch, features_in)]


def get_init_inputs():
    return [features_in, features_out]
