"""Write CUDA kernels for 25 KernelBench problems, each with load_inline and through kernelpro.runtime.

    python benchmarks/kernelbench_kernels.py --kernelbench DIR --out FOLDER
    python benchmarks/judge_throughput.py --kernelbench DIR --candidates FOLDER --kernelbench-calls 4

The kernels are simple and honest, as a model writes them at first: elementwise, row reductions, a pooling,
tiled products; on level 2 the library multiplies or convolves, and a kernel does the rest. Both forms of a
kernel have the same CUDA text. A problem's folder has its file as `task.py`, and the two candidates.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass
from pathlib import Path

ELEMENTWISE = r"""
__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }
__device__ __forceinline__ float mish(float v) { return v * tanhf(v > 20.0f ? v : log1pf(expf(v))); }
__device__ __forceinline__ float apply(float v, float b) { return @; }

__global__ void elementwise(const float* __restrict__ x, const float* __restrict__ b, float* __restrict__ y,
                            long long n, long long inner, long long size) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        y[i] = apply(x[i], b[(i / inner) % size]);
}

static void launch(const float* x, const float* b, float* y, long long n, long long inner, long long size,
                   cudaStream_t stream) {
    elementwise<<<132 * 16, 256, 0, stream>>>(x, b, y, n, inner, size);
}
"""
ROWS = r"""
__device__ __forceinline__ float combine(float a, float b, bool largest) {
    return largest ? fmaxf(a, b) : a + b;
}

__device__ __forceinline__ float warp_reduce(float v, bool largest) {
    for (int offset = 16; offset; offset >>= 1)
        v = combine(v, __shfl_xor_sync(0xffffffffu, v, offset), largest);
    return v;
}

__device__ float block_reduce(float v, bool largest) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_reduce(v, largest);
    __syncthreads();
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_reduce(lane < warps ? part[lane] : (largest ? -3.4e38f : 0.0f), largest);
}

__global__ void rows(const float* __restrict__ x, const float* __restrict__ b, float* __restrict__ y,
                     long long inner, long long size) {
    const float* row = x + (long long)blockIdx.x * size;
@
}

static void launch(const float* x, const float* b, float* y, long long n, long long inner, long long size,
                   cudaStream_t stream) {
    rows<<<(unsigned)(n / size), 1024, 0, stream>>>(x, b, y, inner, size);
}
"""
ROW_SUM = r"""
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < size; i += blockDim.x) sum += row[i];
    sum = block_reduce(sum, false);
    if (threadIdx.x == 0) y[blockIdx.x] = 0.75f * sum;"""
ROW_SOFTMAX = r"""
    float* out = y + (long long)blockIdx.x * size;
    float top = -3.4e38f, sum = 0.0f;
    for (long long i = threadIdx.x; i < size; i += blockDim.x) {
        float v = row[i];
        out[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
        top = fmaxf(top, out[i]);
    }
    top = block_reduce(top, true);
    for (long long i = threadIdx.x; i < size; i += blockDim.x) sum += expf(out[i] - top);
    float scale = 1.0f / block_reduce(sum, false);
    for (long long i = threadIdx.x; i < size; i += blockDim.x) out[i] = expf(out[i] - top) * scale;"""
ROW_NORM = r"""
    float* out = y + (long long)blockIdx.x * size;
    float sum = 0.0f, squares = 0.0f;
    for (long long i = threadIdx.x; i < size; i += blockDim.x) sum += row[i];
    float mean = block_reduce(sum, false) / size;
    for (long long i = threadIdx.x; i < size; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(block_reduce(squares, false) / size + 1e-5f);
    for (long long i = threadIdx.x; i < size; i += blockDim.x)
        out[i] = (row[i] - mean) * scale * b[i] + b[size + i];"""
POOL = r"""
__global__ void pool(const float* __restrict__ x, float* __restrict__ y, long long n, int length) {
    int outputs = length + 1;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float* row = x + i / outputs * length;
    int first = i % outputs - 4;
    float sum = 0.0f;
    for (int k = 0; k < 8; k++)
        if (first + k >= 0 && first + k < length) sum += row[first + k];
    y[i] = sum * 0.125f;
}

static void launch(const float* x, const float* b, float* y, long long n, long long inner, long long size,
                   cudaStream_t stream) {
    pool<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(x, y, n, (int)size);
}
"""
MATMUL = r"""
// C = A B for matrices of n / size x inner and inner x size; one product per blockIdx.z
__global__ void matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                       int M, int N, int K) {
    __shared__ float left[16][64], right[16][64];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    long long row = blockIdx.y * 64, column = blockIdx.x * 64;
    a += (long long)blockIdx.z * M * K;
    b += (long long)blockIdx.z * K * N;
    c += (long long)blockIdx.z * M * N;
    float sum[4][4] = {};
    for (int k = 0; k < K; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            left[i % 16][i / 16] = a[(row + i / 16) * K + k + i % 16];
            right[i / 64][i % 64] = b[(long long)(k + i / 64) * N + column + i % 64];
        }
        __syncthreads();
        for (int s = 0; s < 16; s++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += left[s][ty * 4 + i] * right[s][tx * 4 + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) c[(row + ty * 4 + i) * N + column + tx * 4 + j] = sum[i][j];
}

static void launch(const float* x, const float* b, float* y, long long n, long long inner, long long size,
                   cudaStream_t stream) {
    int M = (int)(n / size / @), N = (int)size, K = (int)inner;
    matmul<<<dim3(N / 64, M / 64, @), 256, 0, stream>>>(x, b, y, M, N, K);
}
"""


@dataclass(frozen=True)
class Kernel:
    """The CUDA text for a problem, and the lines of `forward` that call it as `run(x, b, y, inner, size)`."""

    level: int
    number: int
    cuda: str
    forward: str


def _elementwise(
    level: int, number: int, expression: str, first: str, b: str = "", inner: str = "1"
) -> Kernel:
    """`first`: what the library does. `b`: a parameter for each channel, whose elements are `inner` apart."""
    cuda = ELEMENTWISE.replace("@", expression)
    values, size = (f"{b}.flatten()", f"{b}.numel()") if b else ("x", "1")
    lines = f"x = {first}\ny = torch.empty_like(x)\nrun(x, {values}, y, {inner}, {size})\nreturn y"
    return Kernel(level, number, cuda, lines)


def _matmul(number: int, shape: str, batch: int = 1) -> Kernel:
    lines = f"y = x.new_empty({shape})\nrun(x, other.contiguous(), y, x.shape[-1], y.shape[-1])\nreturn y"
    return Kernel(1, number, MATMUL.replace("@", str(batch)), f"x = x.contiguous()\n{lines}")


KERNELS = (
    _matmul(1, "x.shape[0], other.shape[1]"),
    _matmul(2, "x.shape[0], other.shape[1]"),
    _matmul(3, "x.shape[0], x.shape[1], other.shape[2]", 128),
    _matmul(10, "x.shape[0], x.shape[1], other.shape[1]"),
    _elementwise(1, 12, "v * b", "other.contiguous()", "diagonal", "x.shape[1]"),
    Kernel(
        1,
        40,
        ROWS.replace("@", ROW_NORM),
        "x, y = x.contiguous(), torch.empty_like(x)\n"
        "parameters = torch.cat([self.ln.weight.flatten(), self.ln.bias.flatten()])\n"
        "run(x, parameters, y, 1, self.ln.weight.numel())\nreturn y",
    ),
    Kernel(
        1,
        44,
        POOL,
        "x = x.contiguous()\ny = x.new_empty(x.shape[0], x.shape[1], x.shape[2] + 1)\n"
        "run(x, x, y, 1, x.shape[2])\nreturn y",
    ),
    _elementwise(
        1, 88, "0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)))", "x.contiguous()"
    ),
    _elementwise(
        2,
        7,
        "sigmoid(gelu(fmaxf(v, 0.0f))) + b",
        "self.conv(x).contiguous()",
        "self.bias",
        "x.shape[2] * x.shape[3] * x.shape[4]",
    ),
    _elementwise(2, 12, "v > 0.0f ? 2.0f * v : 0.2f * v", "self.gemm(x)"),
    Kernel(
        2,
        14,
        ROWS.replace("@", ROW_SUM),
        "x = torch.matmul(x, self.weight.T)\ny = x.new_empty(x.shape[0], 1)\n"
        "run(x, x, y, 1, x.shape[1], x.numel())\nreturn y",
    ),
    _elementwise(2, 29, "mish(mish(v))", "self.linear(x)"),
    _elementwise(2, 40, "1.5f * v", "self.matmul(x)"),
    _elementwise(2, 47, "tanhf(mish(v))", "self.conv(x).contiguous()"),
    _elementwise(2, 53, "gelu(fminf(fmaxf(0.5f * v, -2.0f), 2.0f))", "self.gemm(x)"),
    _elementwise(
        2,
        57,
        "fmaxf(v, 0.0f) * fminf((fmaxf(v, 0.0f) + 3.0f) / 6.0f, 1.0f)",
        "self.conv(x).contiguous()",
    ),
    _elementwise(2, 63, "0.5f * fmaxf(v, 0.0f)", "self.linear(x)"),
    _elementwise(
        2,
        69,
        "fmaxf(v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f, 0.0f)",
        "self.conv(x).contiguous()",
    ),
    _elementwise(2, 70, "v + 2.0f * sigmoid(v)", "self.gemm(x)"),
    _elementwise(2, 71, "v > 0.0f ? 0.5f * v : 0.005f * v", "self.conv(x).contiguous()"),
    _elementwise(2, 76, "fmaxf(v + b, 0.0f)", "self.gemm(x)", "self.bias"),
    _elementwise(2, 81, "tanhf(fminf(fmaxf(0.5f * v * sigmoid(v), -1.0f), 1.0f))", "self.gemm(x)"),
    _elementwise(2, 86, "gelu(v / 10.0f)", "self.linear(x)"),
    _elementwise(
        2,
        95,
        "fminf(fmaxf(gelu(tanhf((v + b) * sigmoid(v + b))), -1.0f), 1.0f)",
        "self.matmul(x)",
        "self.add_value",
    ),
    Kernel(
        2,
        99,
        ROWS.replace("@", ROW_SOFTMAX),
        "x = self.linear(x)\ny = torch.empty_like(x)\nrun(x, x, y, 1, x.shape[1])\nreturn y",
    ),
)
BINARY = {(1, 1): "x, other", (1, 2): "x, other", (1, 3): "x, other", (1, 10): "x, other"}
BINARY |= {(1, 12): "diagonal, other"}
"""Parameters of `forward` where there are two."""

INLINE = '''

BINDING = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

void run(torch::Tensor x, torch::Tensor b, torch::Tensor y, int64_t n, int64_t inner, int64_t size) {
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    launch(x.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), n, inner, size, stream);
}
"""

DECLARATION = """
void run(torch::Tensor x, torch::Tensor b, torch::Tensor y, int64_t n, int64_t inner, int64_t size);
"""

extension = load_inline(
    name="NAME",
    cpp_sources=DECLARATION,
    cuda_sources=KERNEL + BINDING,
    functions=["run"],
)


def run(x, b, y, inner, size, n=0):
    extension.run(x, b, y, n or y.numel(), inner, size)
'''
RUNTIME = '''

LAUNCHER = r"""
extern "C" int run(const float* x, const float* b, float* y, long long n, long long inner, long long size,
                   cudaStream_t stream) {
    launch(x, b, y, n, inner, size, stream);
    return cudaGetLastError();
}
"""

lib = runtime.cuda(KERNEL + LAUNCHER)


def run(x, b, y, inner, size, n=0):
    lib.run(x, b, y, n or y.numel(), inner, size)
'''
IMPORTS = {
    "inline": "from torch.utils.cpp_extension import load_inline",
    "runtime": "from kernelpro import runtime",
}


def candidate(kernel: Kernel, reference: str, form: str) -> str:
    """The source of a candidate. It takes the class of the reference, for its parameters."""
    binding = (INLINE if form == "inline" else RUNTIME).replace("NAME", f"kb_{kernel.level}_{kernel.number}")
    classes = [node for node in ast.parse(reference).body if isinstance(node, ast.ClassDef)]
    model = "\n\n\n".join(ast.unparse(node) for node in classes)
    lines = kernel.forward.replace("\n", "\n        ")
    parameters = BINARY.get((kernel.level, kernel.number), "x")
    return (
        f"import math\n\nimport torch\nimport torch.nn as nn\n{IMPORTS[form]}\n\n"
        f'KERNEL = r"""{kernel.cuda}"""{binding}\n\n{model}\n\n\n'
        f"class ModelNew(Model):\n    def forward(self, {parameters}):\n        {lines}\n"
    )


def write_kernels(kernelbench: Path, out: Path) -> list[Path]:
    """Write the folders of all problems; returns them."""
    inner = kernelbench / "KernelBench"
    root = inner if inner.is_dir() else kernelbench
    folders = []
    for kernel in KERNELS:
        (problem,) = (root / f"level{kernel.level}").glob(f"{kernel.number}_*.py")
        folder = out / f"level{kernel.level}_{problem.stem}"
        folder.mkdir(parents=True, exist_ok=True)
        reference = problem.read_text(encoding="utf-8")
        (folder / "task.py").write_text(reference, encoding="utf-8")
        for form in IMPORTS:
            (folder / f"cuda_kernel_{form}.py").write_text(candidate(kernel, reference, form), "utf-8")
        folders.append(folder)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernelbench", type=Path, required=True, metavar="DIR", help="a checkout")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="write the kernels here")
    options = parser.parse_args()
    print(f"{len(write_kernels(options.kernelbench, options.out))} problems in {options.out}")


if __name__ == "__main__":
    main()
