import torch

from kernelpro import runtime

lib = runtime.cpp('extern "C" void go(float* x) { *(volatile int*)8 = 1; }')


class ModelNew(torch.nn.Module):
    def forward(self, x):
        lib.go(x)
        return x
