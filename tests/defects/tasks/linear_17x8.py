"""Linear layer of 17 x 8 tiles of 128 x 256, a few more than there are multiprocessors; TF32 is precise enough."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        return self.linear(x)


batch, features_in, features_out = 17 * 128, 8192, 8 * 256


def get_inputs():
    return [torch.randn(batch, features_in)]


def get_init_inputs():
    return [features_in, features_out]
