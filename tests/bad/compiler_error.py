import torch

from kernelpro import runtime

lib = runtime.cpp('extern "C" void go(float* x) { undeclared = 1; }')


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
