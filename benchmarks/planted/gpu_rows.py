"""CUDA families over rows and tiles: reductions, normalizations, transposes, bins, windows, and a product."""

from __future__ import annotations

import random

from planted.case import Family, Kernel, exclude, write_task
from planted.gpu_text import candidate, launch

_PARAMETERS = "self.weight = nn.Parameter(torch.randn(sizes[0]))"
_WARP_SUM = """
static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}
"""


def _rows(rng: random.Random, defects: frozenset[str]) -> Kernel:
    """RMS norm, a block per row, the row in registers."""
    threads = rng.choice((128, 256))
    dim = 4 * threads * rng.choice((1, 2, 4))
    rows = rng.randrange(60_000_000, 120_000_000) // dim
    blocks, fat = rng.choice((24, 40, 56)), rng.choice((96, 150, 200))
    real = "double" if "double_math" in defects else "float"
    exchange = (
        "    __shared__ float parts[THREADS / 32];\n    sum = warp_sum(sum);\n"
        "    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;\n    __syncthreads();\n    sum = 0;\n"
        "#pragma unroll\n    for (int k = 0; k < THREADS / 32; ++k) sum += parts[k];\n"
    )
    if "tree_reduction" in defects:
        exchange = (
            "    __shared__ float parts[THREADS];\n    for (int again = 0; again < 2; ++again) {\n        __syncthreads();\n"
            "        parts[threadIdx.x] = (float)sum;\n        __syncthreads();\n"
            "        for (int half = THREADS / 2; half; half /= 2) {\n            float other = 0;\n            if (threadIdx.x < half) other = parts[threadIdx.x + half];\n"
            "            __syncthreads();\n            if (threadIdx.x < half) parts[threadIdx.x] += other;\n            __syncthreads();\n        }\n    }\n    sum = parts[0];\n"
        )
    elif "atomics" in defects:
        exchange = (
            "    __shared__ float total;\n    if (!threadIdx.x) total = 0;\n    __syncthreads();\n"
            "    atomicAdd(totals + row, (float)sum);\n    __threadfence();\n    __syncthreads();\n    sum = *(volatile float*)(totals + row);\n"
        )
    elif "bank_conflicts" in defects:
        exchange = (
            "    __shared__ float parts[32 * 33 * (THREADS / 32)];\n    float* mine = parts + (threadIdx.x / 32) * 1024;\n"
            "    for (int again = 0; again < 4; ++again) {\n        const int lane = threadIdx.x % 32;\n"
            "        for (int k = 0; k < 8; ++k) mine[lane * 32 + k] = (float)sum;\n        __syncwarp();\n"
            "        float all = 0;\n        for (int k = 0; k < 8; ++k) all += mine[lane * 32 + k];\n        sum = all * 0.125f;\n        __syncwarp();\n    }\n"
            + exchange.replace("parts", "lasts")
        )
    per = f"{dim} / (4 * THREADS)"
    load = "        const float4 v = ((const float4*)(x + (int64_t)row * DIM))[threadIdx.x + k * THREADS];\n"
    keep = "        kept[k] = v;\n"
    take = "        const float4 v = kept[k];\n"
    terms = f"        sum += ({real})v.x * v.x + ({real})v.y * v.y + ({real})v.z * v.z + ({real})v.w * v.w;\n"
    scale = f"    const {real} scale = 1 / sqrt(({real})sum / DIM + ({real})1e-5);\n"
    values = ", ".join(f"(float)(v.{axis} * scale * w.{axis})" for axis in "xyzw")
    if "thread_per_row" in defects:
        kernel = (
            "__global__ void __launch_bounds__(THREADS) row_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y, float* totals, int rows) {\n"
            "    const int row = blockIdx.x * THREADS + threadIdx.x;\n    if (row >= rows) return;\n    float sum = 0;\n"
            "    for (int k = 0; k < DIM; ++k) { const float v = x[(int64_t)row * DIM + k]; sum += v * v; }\n"
            "    const float scale = rsqrtf(sum / DIM + 1e-5f);\n"
            "    for (int k = 0; k < DIM; ++k) y[(int64_t)row * DIM + k] = x[(int64_t)row * DIM + k] * scale * weight[k];\n}\n"
        )
        grid, shared = "(rows + THREADS - 1) / THREADS", "0"
    else:
        loop = "    const int row = blockIdx.x;\n    {\n"
        grid, shared = "rows", "0"
        if "few_blocks" in defects:
            loop, grid = (
                "    for (int row = blockIdx.x; row < rows; row += gridDim.x) {\n    __syncthreads();\n",
                str(blocks),
            )
        if "fat_shared" in defects:
            shared = str(fat * 1024)
        kernel = (
            f"{_WARP_SUM}__global__ void __launch_bounds__(THREADS) row_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y, float* totals, int rows) {{\n"
            f"{loop}    float4 kept[PER];\n    {real} sum = 0;\n#pragma unroll\n    for (int k = 0; k < PER; ++k) {{\n{load}{keep}{terms}    }}\n"
            f"{exchange}{scale}#pragma unroll\n    for (int k = 0; k < PER; ++k) {{\n{take}"
            "        const float4 w = ((const float4*)weight)[threadIdx.x + k * THREADS];\n"
            f"        ((float4*)(y + (int64_t)row * DIM))[threadIdx.x + k * THREADS] = make_float4({values});\n    }}\n    }}\n}}\n"
        )
    source = (
        f"#include <cstdint>\nconstexpr int DIM = {dim}, THREADS = {threads}, PER = {per};\n{kernel}\n"
        'extern "C" int run(const float* x, const float* weight, float* y, float* totals, int rows, cudaStream_t stream) {\n'
        f"{launch('row_kernel', grid, 'THREADS', 'x, weight, y, totals, rows', shared)}    return cudaGetLastError();\n}}\n"
    )
    call = "y = torch.empty_like(x)\ntotals = x.new_zeros(len(x))\nlib.run(x, self.weight, y, totals, len(x))\nreturn y"
    if "atomics" not in defects:
        call = call.replace("x.new_zeros(len(x))", "y")
    if "torch_chain" in defects:
        call = "t = x * x\nt = t.mean(-1, keepdim=True)\nt = torch.rsqrt(t + 1e-5)\nt = x * t\nreturn t * self.weight"
    elif "clone" in defects:
        call = f"x = x.clone()\n{call}"
    elif "host_sync" in defects:
        call = (
            f"for i in range(8):\n    if float(x[i, 0]) != float(x[i, 0]):\n        raise ValueError\n{call}"
        )
    task = write_task(
        "x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight",
        f"torch.randn({rows}, {dim})",
        f"[{dim}]",
        parameters=_PARAMETERS,
    )
    return Kernel(task, candidate(source, f"x:\n{call}", _PARAMETERS))


def _long_rows(rng: random.Random, defects: frozenset[str]) -> Kernel:
    """A weighted softmax-like normalization of rows beyond a block's registers: two passes or three."""
    dim = 1024 * rng.choice((64, 96, 128))
    rows = 132 * rng.choice((4, 8))
    passes = 3 if "third_pass" in defects else 1
    kernel = f"""{_WARP_SUM}
__global__ void __launch_bounds__(1024) row_kernel(const float* __restrict__ x, float* __restrict__ y) {{
    __shared__ float parts[32];
    const float4* from = (const float4*)(x + (int64_t)blockIdx.x * DIM);
    float result = 0;
    for (int pass = 0; pass < {passes}; ++pass) {{
        float sum = 0;
#pragma unroll 4
        for (int k = threadIdx.x; k < DIM / 4; k += 1024) {{
            const float4 v = __ldcg(from + k);
            const float shift = result * 1e-9f;
            sum += (v.x - shift) * (v.x - shift) + (v.y - shift) * (v.y - shift) + (v.z - shift) * (v.z - shift) + (v.w - shift) * (v.w - shift);
        }}
        sum = warp_sum(sum);
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
        __syncthreads();
        result = 0;
        for (int k = 0; k < 32; ++k) result += parts[k];
    }}
    if (!threadIdx.x) y[blockIdx.x] = result;
}}
"""
    source = (
        f"#include <cstdint>\nconstexpr int DIM = {dim};\n{kernel}\n"
        'extern "C" int run(const float* x, float* y, int rows, cudaStream_t stream) {\n'
        f"{launch('row_kernel', 'rows', '1024', 'x, y')}    return cudaGetLastError();\n}}\n"
    )
    copy = "x = x.clone()\n" if "clone" in defects else ""
    task = write_task("x: x.pow(2).sum(-1)", f"torch.randn({rows}, {dim})")
    return Kernel(
        task, candidate(source, f"x:\n{copy}y = x.new_empty(len(x))\nlib.run(x, y, len(x))\nreturn y")
    )


def _transpose(rng: random.Random, defects: frozenset[str]) -> Kernel:
    rows, cols = (64 * rng.randrange(120, 180) for _ in range(2))
    factor = rng.choice((0.5, 1.5, 2.0))
    pad = "" if "bank_conflicts" in defects else " + 1"
    if "uncoalesced" in defects:
        kernel = (
            "__global__ void __launch_bounds__(256) turn_kernel(const float* __restrict__ x, const float* __restrict__ z, float* __restrict__ y, int rows, int cols) {\n"
            "    const int64_t i = blockIdx.x * 256ll + threadIdx.x;\n    const int row = (int)(i / rows), col = (int)(i % rows);\n"
            "    y[i] = x[(int64_t)col * cols + row] * FACTOR + z[i];\n}\n"
        )
        grid, threads = "(unsigned)((int64_t)rows * cols / 256)", "256"
    else:
        barrier = "        __syncthreads();\n" if "barriers" in defects else ""
        kernel = (
            "__global__ void __launch_bounds__(256) turn_kernel(const float* __restrict__ x, const float* __restrict__ z, float* __restrict__ y, int rows, int cols) {\n"
            f"    __shared__ float tile[64][64{pad}];\n    const int row = blockIdx.y * 64, col = blockIdx.x * 64;\n"
            "    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n#pragma unroll\n"
            "    for (int k = warp; k < 64; k += 8) {\n        tile[k][lane] = x[(int64_t)(row + k) * cols + col + lane];\n"
            f"        tile[k][lane + 32] = x[(int64_t)(row + k) * cols + col + lane + 32];\n{barrier}    }}\n    __syncthreads();\n#pragma unroll\n"
            "    for (int k = warp; k < 64; k += 8) {\n        const int64_t to = (int64_t)(col + k) * rows + row + lane;\n"
            "        y[to] = tile[lane][k] * FACTOR + z[to];\n        y[to + 32] = tile[lane + 32][k] * FACTOR + z[to + 32];\n    }\n}\n"
        )
        grid, threads = "dim3(cols / 64, rows / 64)", "256"
    source = (
        f"#include <cstdint>\nconstexpr float FACTOR = {factor}f;\n{kernel}\n"
        'extern "C" int run(const float* x, const float* z, float* y, int rows, int cols, cudaStream_t stream) {\n'
        f"{launch('turn_kernel', grid, threads, 'x, z, y, rows, cols')}    return cudaGetLastError();\n}}\n"
    )
    call = "y = torch.empty_like(z)\nlib.run(x, z, y, *x.shape)\nreturn y"
    if "clone" in defects:
        call = f"x = x.clone()\n{call}"
    task = write_task(
        f"x, z: x.t() * {factor} + z", f"torch.randn({rows}, {cols}), torch.randn({cols}, {rows})"
    )
    return Kernel(task, candidate(source, f"x, z:\n{call}"))


def _bins(rng: random.Random, defects: frozenset[str]) -> Kernel:
    count, n = 32 * rng.randrange(2, 32), 4096 * rng.randrange(9000, 18000)
    if "atomics" in defects:
        body = "    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) atomicAdd(y + index[i], x[i]);\n"
    else:
        body = (
            "    __shared__ float sums[8][COUNT];\n    for (int k = threadIdx.x; k < 8 * COUNT; k += 256) sums[0][k] = 0;\n    __syncthreads();\n"
            "    float* mine = sums[threadIdx.x / 32];\n"
            "#pragma unroll 2\n    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n / 4; i += gridDim.x * 256ll) {\n"
            "        const float4 v = ((const float4*)x)[i];\n        const int4 at = ((const int4*)index)[i];\n"
            "        atomicAdd(mine + at.x, v.x); atomicAdd(mine + at.y, v.y); atomicAdd(mine + at.z, v.z); atomicAdd(mine + at.w, v.w);\n    }\n"
            "    __syncthreads();\n    for (int k = threadIdx.x; k < COUNT; k += 256) {\n        float sum = 0;\n"
            "        for (int w = 0; w < 8; ++w) sum += sums[w][k];\n        atomicAdd(y + k, sum);\n    }\n"
        )
    grid = "24" if "few_blocks" in defects else "132 * 4"
    source = (
        f"#include <cstdint>\nconstexpr int COUNT = {count};\n"
        f"__global__ void __launch_bounds__(256) bins_kernel(const float* __restrict__ x, const int* __restrict__ index, float* __restrict__ y, int64_t n) {{\n{body}}}\n\n"
        'extern "C" int run(const float* x, const int* index, float* y, int64_t n, cudaStream_t stream) {\n'
        f"{launch('bins_kernel', grid, '256', 'x, index, y, n')}    return cudaGetLastError();\n}}\n"
    )
    call = f"y = x.new_zeros({count})\nlib.run(x, index, y, x.numel())\nreturn y"
    task = write_task(
        f"x, index: torch.zeros({count}, device=x.device).index_add_(0, index, x)",
        f"torch.rand({n}), torch.randint(0, {count}, ({n},), dtype=torch.int32)",
    )
    return Kernel(task, candidate(source, f"x, index:\n{call}"))


def _window(rng: random.Random, defects: frozenset[str]) -> Kernel:
    """A sum over a window of each row: a strip of outputs per thread in registers."""
    taps = rng.choice((9, 13, 17, 25))
    cols = 1024 * rng.choice((4, 8))
    rows = rng.randrange(60_000_000, 100_000_000) // cols
    width = cols - taps + 1
    if "reload" in defects:
        body = (
            "    const int col = blockIdx.x * 256 + threadIdx.x;\n    if (col >= WIDTH) return;\n    float sum = 0;\n"
            "    for (int k = 0; k < TAPS; ++k) sum += x[(int64_t)blockIdx.y * COLS + col + k] * weight[k];\n"
            "    y[(int64_t)blockIdx.y * WIDTH + col] = sum;\n"
        )
        grid = "dim3((WIDTH + 255) / 256, rows)"
    else:
        body = (
            "    const int col = (blockIdx.x * 256 + threadIdx.x) * 4;\n    if (col >= WIDTH) return;\n"
            "    const float* from = x + (int64_t)blockIdx.y * COLS + col;\n    float v[TAPS + 3], sums[4] = {};\n"
            "#pragma unroll\n    for (int k = 0; k < TAPS + 3; k += 4) {\n        const float4 q = *(const float4*)(from + k);\n"
            "        v[k] = q.x; v[k + 1] = q.y; v[k + 2] = q.z; v[k + 3] = q.w;\n    }\n#pragma unroll\n"
            "    for (int k = 0; k < TAPS; ++k) {\n        const float w = weight[k];\n#pragma unroll\n"
            "        for (int j = 0; j < 4; ++j) sums[j] += v[j + k] * w;\n    }\n"
            "    *(float4*)(y + (int64_t)blockIdx.y * WIDTH + col) = make_float4(sums[0], sums[1], sums[2], sums[3]);\n"
        )
        grid = "dim3((WIDTH / 4 + 255) / 256, rows)"
    source = (
        f"#include <cstdint>\nconstexpr int COLS = {cols}, TAPS = {taps}, WIDTH = {width};\n"
        f"__global__ void __launch_bounds__(256) window_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y) {{\n{body}}}\n\n"
        'extern "C" int run(const float* x, const float* weight, float* y, int rows, cudaStream_t stream) {\n'
        f"{launch('window_kernel', grid, '256', 'x, weight, y')}    return cudaGetLastError();\n}}\n"
    )
    copy = "x = x.clone()\n" if "clone" in defects else ""
    call = f"{copy}y = x.new_empty(len(x), {width})\nlib.run(x, self.weight, y, len(x))\nreturn y"
    task = write_task(
        "x: torch.nn.functional.conv1d(x[:, None], self.weight[None, None])[:, 0]",
        f"torch.randn({rows}, {cols})",
        f"[{taps}]",
        parameters="self.weight = nn.Parameter(torch.randn(sizes[0]))",
    )
    return Kernel(task, candidate(source, f"x:\n{call}", "self.weight = nn.Parameter(torch.randn(sizes[0]))"))


_COPIES = ("needless_copies", "unfused_chain")

FAMILIES: tuple[Family, ...] = (
    Family(
        "rms_norm_cuda",
        "cuda",
        "cuda",
        _rows,
        {
            "tree_reduction": ("barrier_stall",),
            "atomics": ("atomics_contention", "memory_barriers"),
            "bank_conflicts": ("bank_conflicts",),
            "thread_per_row": ("uncoalesced_access", "sector_waste"),
            "few_blocks": ("low_parallelism",),
            "fat_shared": ("occupancy_limiter", "low_parallelism"),
            "double_math": ("double_precision",),
            "torch_chain": ("unfused_chain",),
            "clone": _COPIES,
            "host_sync": ("host_sync",),
        },
        exclude(
            ("tree_reduction", "atomics", "bank_conflicts", "thread_per_row"),
            ("thread_per_row", "few_blocks", "fat_shared"),
            ("torch_chain", "clone", "host_sync"),
            ("double_math", "thread_per_row"),
            ("double_math", "tree_reduction"),
            ("double_math", "bank_conflicts"),
            ("double_math", "atomics"),
            ("double_math", "few_blocks"),
            ("double_math", "fat_shared"),
            *(
                ("torch_chain", kind)
                for kind in (
                    "tree_reduction",
                    "atomics",
                    "bank_conflicts",
                    "thread_per_row",
                    "few_blocks",
                    "fat_shared",
                    "double_math",
                )
            ),
            *(
                (first, second)
                for first in ("few_blocks", "fat_shared")
                for second in ("tree_reduction", "atomics", "bank_conflicts")
            ),
        ),
    ),
    Family(
        "long_rows_cuda", "cuda", "cuda", _long_rows, {"third_pass": ("excess_traffic",), "clone": _COPIES}
    ),
    Family(
        "transpose_cuda",
        "cuda",
        "cuda",
        _transpose,
        {
            "bank_conflicts": ("bank_conflicts",),
            "uncoalesced": ("uncoalesced_access", "sector_waste"),
            "barriers": ("barrier_stall",),
            "clone": _COPIES,
        },
        exclude(("bank_conflicts", "uncoalesced", "barriers")),
    ),
    Family(
        "bins_cuda",
        "cuda",
        "cuda",
        _bins,
        {"atomics": ("atomics_contention",), "few_blocks": ("low_parallelism",)},
        exclude(("atomics", "few_blocks")),
    ),
    Family("window_cuda", "cuda", "cuda", _window, {"reload": ("missing_reuse",), "clone": _COPIES}),
)
