"""Divergence of a student from a teacher at temperature 2, by row."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, student, teacher):
        wanted = F.log_softmax(teacher / 2, dim=-1)
        return (wanted.exp() * (wanted - F.log_softmax(student / 2, dim=-1))).sum(dim=-1) * 4


TARGET = "cuda"
SIZES = {"cuda": (8192, 16384), "cpu": (256, 4096)}
rows, vocabulary = SIZES[TARGET]


def get_inputs():
    return [torch.randn(rows, vocabulary), torch.randn(rows, vocabulary)]


def get_init_inputs():
    return []
