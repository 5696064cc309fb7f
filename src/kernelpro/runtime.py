"""The module that candidates import to build native code.

    from kernelpro import runtime

    lib = runtime.cuda(r'''
    __global__ void twice_kernel(const float* x, float* y, int n) { ... }
    extern "C" int twice(const float* x, float* y, int n, cudaStream_t stream) {
        twice_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
        return cudaGetLastError();
    }
    ''')

    class ModelNew(torch.nn.Module):
        def forward(self, x):
            y = torch.empty_like(x)
            lib.twice(x, y, x.numel())      # tensors become pointers; the current stream is added
            return y

`cuda`, `cute` (with the CUTLASS/CuTe headers) and `cpp` (for the CPU) work the same way. The library has one
attribute for each `extern "C"` function. The call builds the library, or reuses one that was built from the
same source; it needs no headers of torch. A launcher that returns a non-zero int raises `LaunchError`.
"""

from kernelpro.lab.languages.cpp import cpp
from kernelpro.lab.languages.cuda import cuda
from kernelpro.lab.languages.cute import cute
from kernelpro.lab.languages.native import BuildError, LaunchError

__all__ = ["BuildError", "LaunchError", "cpp", "cuda", "cute"]
