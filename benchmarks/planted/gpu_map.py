"""Element-wise CUDA families: float32, bfloat16 and bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from planted.case import Family, Kernel, Write, exclude, write_task
from planted.gpu_text import candidate, launch

_PARAMETERS = "self.bias = nn.Parameter(torch.randn(sizes[0]))"


@dataclass(frozen=True)
class _Function:
    """A function of v and the column's bias b, in torch and in CUDA over the type T."""

    torch: str
    code: str
    slow: str = ""
    chain: str = ""
    setup: str = ""


_LIGHT = (
    _Function(
        "torch.relu(x + self.bias) * 0.75 + x * 0.25",
        "T t = v + b; t = t > T(0) ? t : T(0); return t * T(0.75f) + v * T(0.25f);",
        chain="t = x + self.bias\nt = torch.relu(t)\nt = t * 0.75\nreturn t + x * 0.25",
    ),
    _Function(
        "x * torch.clamp(x + 3, 0, 6) * (1 / 6) + self.bias",
        "T t = v + T(3); t = t < T(0) ? T(0) : t; t = t > T(6) ? T(6) : t; return v * t * T(1 / 6.0f) + b;",
        chain="t = x + 3\nt = torch.clamp(t, 0, 6)\nt = x * t\nt = t * (1 / 6)\nreturn t + self.bias",
    ),
    _Function(
        "((0.125 * x + self.bias) * x + 0.5) * x",
        "return ((T(0.125f) * v + b) * v + T(0.5f)) * v;",
        chain="t = 0.125 * x\nt = t + self.bias\nt = t * x\nt = t + 0.5\nreturn t * x",
    ),
)
_MATH = (
    _Function(
        "torch.tanh(x) * (x.abs() + 0.1) ** 1.5 + self.bias",
        "const float a = fabsf(v) + 0.1f; return (1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * v))) * a * __fsqrt_rn(a) + b;",
        slow="return tanhf(v) * powf(fabsf(v) + 0.1f, 1.5f) + b;",
        chain="t = torch.tanh(x)\na = x.abs()\na = a + 0.1\na = a ** 1.5\nt = t * a\nreturn t + self.bias",
    ),
    _Function(
        "torch.sin(x) * torch.exp(-x * x) + torch.log1p(x.abs()) + self.bias",
        "return __sinf(v) * __expf(-v * v) + __logf(1.0f + fabsf(v)) + b;",
        slow="return sinf(v) * expf(-powf(fabsf(v), 2.0f)) + log1pf(fabsf(v)) + b;",
        chain="t = torch.sin(x)\ne = torch.exp(-x * x)\nt = t * e\nt = t + torch.log1p(x.abs())\nreturn t + self.bias",
    ),
)
_HEAVY = (
    _Function(
        "iterate(x) + self.bias",
        "T t = v;\n#pragma unroll\n    for (int k = 0; k < STEPS; ++k) t = t * (T(1.5f) - T(0.5f) * t * t);\n    return t + b;",
        setup="def iterate(v):\n    v = v.clamp(-1, 1)\n    for _ in range({steps}):\n        v = v * (1.5 - 0.5 * v * v)\n    return v",
    ),
)


def _map(functions: tuple[_Function, ...]) -> Write:
    def make(rng: random.Random, defects: frozenset[str]) -> Kernel:
        cols = 256 * rng.choice((4, 8, 12, 16, 24, 32))
        rows = rng.randrange(60_000_000, 120_000_000) // cols // 64 * 64
        function, steps = rng.choice(functions), rng.choice((16, 24, 32))
        threads, unroll = rng.choice((128, 256)), rng.choice((2, 4))
        blocks, extra, fat = rng.choice((24, 40, 56)), rng.randrange(8, 60), rng.choice((96, 150, 200))
        pieces, copies = rng.choice((64, 96, 128)), rng.randrange(2)
        function_code = function.slow if "slow_math" in defects else function.code
        if function in _HEAVY:
            function_code = "v = v < T(-1) ? T(-1) : v > T(1) ? T(1) : v;\n    " + function_code
        real = "double" if "double_math" in defects else "float"
        f = (
            f"constexpr int COLS = {cols}, THREADS = {1024 if defects & {'barriers', 'tail'} else 128 if 'fat_shared' in defects else threads},"
            f" UNROLL = {unroll}, STEPS = {steps};\n"
            f"template <class T> static __device__ __forceinline__ T f(T v, T b) {{\n    {function_code}\n}}\n"
        )
        if "divergence" in defects:
            f += _DIVERGENT
        name = "g" if "divergence" in defects else f"f<{real}>"
        kernel, grid, shared = _kernel(defects, name, blocks, extra, fat)
        launches = launch("map_kernel", grid, "THREADS", "x, bias, y, n, cols, shift", shared)
        extra_kernels = ""
        if "split_kernels" in defects:
            extra_kernels = _COPY_KERNEL
            launches += launch("scale_kernel", "n / 1024", "256", "y, scratch, 2.0f").replace(
                "n / 1024", "(unsigned)(n / 1024)"
            )
            launches += launch("scale_kernel", "(unsigned)(n / 1024)", "256", "scratch, y, 0.5f")
        source = (
            f"{f}\n{kernel}{extra_kernels}\n"
            'extern "C" int run(const float* x, const float* bias, float* y, float* scratch, int64_t n, int64_t cols, int shift, cudaStream_t stream) {\n'
            f"{launches}    return cudaGetLastError();\n}}\n"
        )
        source = "#include <cstdint>\n" + source
        task = write_task(
            f"x: {function.torch}",
            f"torch.randn({rows}, {cols})",
            f"[{cols}]",
            setup=function.setup.replace("{steps}", str(steps)),
            parameters=_PARAMETERS,
        )
        return Kernel(
            task,
            candidate(
                source,
                f"x:\n{_forward(defects, function, pieces, copies)}",
                _PARAMETERS + "\nself.scratch = None",
            ),
        )

    return make


_COPY_KERNEL = """
__global__ void scale_kernel(const float* __restrict__ x, float* __restrict__ y, float scale) {
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    float4 v = ((const float4*)x)[i];
    v.x *= scale; v.y *= scale; v.z *= scale; v.w *= scale;
    ((float4*)y)[i] = v;
}
"""
_DIVERGENT = """
static __device__ float g(float v, float b) {
    float t;
    switch (threadIdx.x & 3) {
        case 0: t = f<float>(v, b); asm volatile("" : "+f"(t)); break;
        case 1: t = f<float>(v, b); asm volatile("mov.f32 %0, %0;" : "+f"(t)); break;
        case 2: asm volatile("" : "+f"(v)); t = f<float>(v, b); break;
        default: asm volatile("mov.f32 %0, %0;" : "+f"(v)); t = f<float>(v, b);
    }
    return t;
}
"""


def _kernel(defects: frozenset[str], f: str, blocks: int, extra: int, fat: int) -> tuple[str, str, str]:
    """The kernel, its grid and its dynamic shared memory."""
    head = (
        "__global__ void __launch_bounds__(THREADS) map_kernel(const float* __restrict__ x, const float* __restrict__ bias,\n"
        "                                                      float* __restrict__ y, int64_t n, int64_t cols, int shift) {\n"
    )
    grid, shared = "(unsigned)(n / (THREADS * 4 * UNROLL))", "0"
    if "uncoalesced" in defects:
        body = (
            "    const int64_t first = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * (4 * UNROLL);\n#pragma unroll\n"
            f"    for (int k = 0; k < 4 * UNROLL; ++k) y[first + k] = (float){f}(x[first + k], bias[(first + k) % COLS]);\n"
        )
        return head + body + "}\n", grid, shared
    if "column_walk" in defects:
        body = (
            "    const int64_t rows = n / COLS;\n#pragma unroll\n    for (int k = 0; k < 4 * UNROLL; ++k) {\n"
            "        const int64_t t = (blockIdx.x * (4ll * UNROLL) + k) * THREADS + threadIdx.x;\n"
            "        const int row = (int)(t % rows), col = (int)(t / rows);\n        const int64_t i = (int64_t)row * COLS + col;\n"
            f"        y[i] = (float){f}(x[i], bias[col]);\n    }}\n"
        )
        return head + body + "}\n", grid, shared
    column = "(4 * i) % COLS"
    if "int_division" in defects:  # the first column, as the mean of four remainders
        column = f"({' + '.join(f'(4 * i + {e}) % cols' for e in range(4))} - 6) / 4"
    each = f"        const float4 c = *(const float4*)(bias + (int)({column}));\n"
    each += "".join(f"        v.{axis} = (float){f}(v.{axis}, c.{axis});\n" for axis in "xyzw")
    if "spills" in defects:
        body = (
            "    float kept[4 * UNROLL];\n"
            "    const int64_t first = blockIdx.x * (int64_t)THREADS * UNROLL + threadIdx.x;\n#pragma unroll\n"
            "    for (int k = 0; k < UNROLL; ++k) {\n        const int64_t i = first + k * THREADS;\n        float4 v = ((const float4*)x)[i];\n"
            f"{each}        kept[4 * k] = v.x; kept[4 * k + 1] = v.y; kept[4 * k + 2] = v.z; kept[4 * k + 3] = v.w;\n    }}\n"
            "    for (int pass = 0; pass < 6; ++pass)\n#pragma unroll 1\n        for (int k = 0; k < 4 * UNROLL; ++k) kept[(k + shift) & (4 * UNROLL - 1)] += shift;\n"
            "#pragma unroll\n    for (int k = 0; k < UNROLL; ++k)\n"
            "        ((float4*)y)[first + k * THREADS] = make_float4(kept[4 * k], kept[4 * k + 1], kept[4 * k + 2], kept[4 * k + 3]);\n"
        )
        return head + body + "}\n", grid, shared
    first, step, last = (
        "blockIdx.x * (int64_t)THREADS * UNROLL + threadIdx.x",
        "THREADS",
        "first + UNROLL * (int64_t)THREADS",
    )
    unrolled = "#pragma unroll\n"
    if "few_blocks" in defects:
        grid, step, last, unrolled = (
            str(blocks),
            "(int64_t)gridDim.x * THREADS",
            "n / 4",
            "#pragma unroll 4\n",
        )
        first = "blockIdx.x * (int64_t)THREADS + threadIdx.x"
    elif "tail" in defects:
        grid, unrolled = str(264 + extra), "#pragma unroll 4\n"
        first = "n / 4 * blockIdx.x / gridDim.x + threadIdx.x"
        last = "n / 4 * (blockIdx.x + 1) / gridDim.x"
    elif defects & {"barriers", "fences", "fat_shared"}:
        grid, step, last, unrolled = "132 * 2", "(int64_t)gridDim.x * THREADS", "n / 4", ""
        first = "blockIdx.x * (int64_t)THREADS + threadIdx.x"
        if "fat_shared" in defects:
            grid, shared = f"132 * {227 // fat}", str(fat * 1024)
            unrolled = "#pragma unroll 2\n"
        elif "fences" in defects:
            grid, unrolled = "132 * (2048 / THREADS)", "#pragma unroll 1\n"
    after = ""
    if "barriers" in defects:
        after = "        __syncthreads();\n"
        unrolled = "#pragma unroll 1\n"
        last = "n / 4 / (gridDim.x * THREADS) * (gridDim.x * (int64_t)THREADS)"
    if "fences" in defects:
        after += "        __threadfence();\n"
    store = "        ((float4*)y)[i] = v;\n"
    middle = "        __syncthreads();\n" if "barriers" in defects else ""
    body = (
        f"    const int64_t first = {first};\n{unrolled}    for (int64_t i = first; i < {last}; i += {step}) {{\n"
        f"        float4 v = ((const float4*)x)[i];\n{middle}{each}{store}{after}    }}\n"
    )
    if "barriers" in defects:
        body += f"    for (int64_t i = {last} + first; i < n / 4; i += {step}) {{\n        float4 v = ((const float4*)x)[i];\n{each}{store}    }}\n"
    return head + body + "}\n", grid, shared


def _forward(defects: frozenset[str], function: _Function, pieces: int, copies: int) -> str:
    call = "lib.run(x, self.bias, y, {scratch}, x.numel(), x.shape[1], 0)"
    if "torch_chain" in defects:
        return function.chain
    text = "y = torch.empty_like(x)\n"
    if "clone" in defects:
        text = ("x = x.clone()\n", "x = x.t().contiguous().t().contiguous()\n")[copies] + text
    if "cast" in defects:
        text = "x = x.double().float()\n" + text
    if "host_sync" in defects:
        text += "for i in range(8):\n    if float(x[i, 0]) != float(x[i, 0]):\n        raise ValueError\n"
    if "many_launches" in defects:
        return text + (
            f"for a, b in zip(x.chunk({pieces}), y.chunk({pieces})):\n    "
            "lib.run(a, self.bias, b, b, a.numel(), a.shape[1], 0)\nreturn y"
        )
    scratch = "torch.empty_like(y)" if "split_kernels" in defects else "y"
    return text + call.replace("{scratch}", scratch) + "\nreturn y"


_HOST: dict[str, tuple[str, ...]] = {
    "clone": ("needless_copies", "unfused_chain"),
    "cast": ("needless_copies", "unfused_chain"),
    "host_sync": ("host_sync",),
    "many_launches": ("launch_overhead", "host_gaps"),
}
_ACCESS: dict[str, tuple[str, ...]] = {
    "uncoalesced": ("uncoalesced_access", "sector_waste"),
    "column_walk": ("uncoalesced_access", "sector_waste"),
    "int_division": ("integer_arithmetic",),
    "few_blocks": ("low_parallelism",),
    "fat_shared": ("occupancy_limiter", "low_parallelism"),
    "barriers": ("barrier_stall",),
    "fences": ("memory_barriers",),
    "tail": ("tail_effect",),
    "spills": ("spills",),
    "split_kernels": ("excess_traffic", "unfused_chain"),
}
_STRUCTURE = (
    "uncoalesced",
    "column_walk",
    "few_blocks",
    "fat_shared",
    "barriers",
    "fences",
    "tail",
    "spills",
)
_APART = exclude(
    _STRUCTURE,
    ("clone", "cast", "torch_chain"),
    ("many_launches", "host_sync"),
    *(("torch_chain", kind) for kind in (*_ACCESS, "host_sync", "many_launches", "double_math", "slow_math")),
    *(
        ("many_launches", kind)
        for kind in (*_ACCESS, "clone", "cast", "double_math", "slow_math", "divergence")
    ),
    *(("int_division", kind) for kind in ("uncoalesced", "column_walk", "barriers", "fat_shared")),
    *(
        ("double_math", kind)
        for kind in (
            "barriers",
            "fat_shared",
            "tail",
            "fences",
            "uncoalesced",
            "column_walk",
            "few_blocks",
            "spills",
        )
    ),
    *(
        ("slow_math", kind)
        for kind in (
            "barriers",
            "fat_shared",
            "tail",
            "fences",
            "uncoalesced",
            "column_walk",
            "few_blocks",
            "spills",
        )
    ),
    *(("divergence", kind) for kind in (*_STRUCTURE, "int_division", "double_math")),
    *(("split_kernels", kind) for kind in ("few_blocks", "clone", "cast")),
)


def _narrow(kind: str) -> Write:
    def make(rng: random.Random, defects: frozenset[str]) -> Kernel:
        cols = 256 * rng.choice((8, 16, 32))
        scale = 2 if kind == "bytes" else 1
        rows = scale * rng.randrange(90_000_000, 200_000_000) // cols // 64 * 64
        threads, blocks = rng.choice((128, 256)), rng.choice((24, 40, 56))
        width = 16 if kind == "bytes" else 8
        element = "uint8_t" if kind == "bytes" else "__nv_bfloat16"
        if kind == "bytes":
            f = "static __device__ __forceinline__ uint8_t f(uint8_t v, int c) { return (uint8_t)((v * 3 + 64) >> 2); }\n"
            task = write_task(
                "x: ((x.int() * 3 + 64) >> 2).to(torch.uint8)",
                f"torch.randint(0, 200, ({rows}, {cols}), dtype=torch.uint8)",
            )
        else:
            middle = (
                "v = __bfloat162float(__float2bfloat16(v));"
                if "conversions" not in defects
                else (
                    'for (int k = 0; k < 6; ++k) { __nv_bfloat16 h = __float2bfloat16(v); asm volatile("" : "+h"(*(unsigned short*)&h)); v = __bfloat162float(h); }'
                )
            )
            f = (
                f"static __device__ __forceinline__ {element} f({element} h, float b) {{ float v = __bfloat162float(h) + b; {middle}\n"
                "    return __float2bfloat16(fmaxf(v, 0.0f)); }\n"
            )
            task = write_task(
                "x: torch.relu(x + self.bias)",
                f"torch.randn({rows}, {cols}, dtype=torch.bfloat16)",
                f"[{cols}]",
                parameters="self.bias = nn.Parameter(torch.randn(sizes[0], dtype=torch.bfloat16))",
            )
        column = "i % COLS"
        if "int_division" in defects:  # the first column, as the mean of eight remainders
            column = f"({' + '.join(f'(i + {e}) % cols' for e in range(8))} - 28) / 8"
        wide = (
            ""
            if kind == "bytes"
            else (
                f"        alignas(16) {element} c[WIDTH];\n        *(uint4*)c = *(const uint4*)(bias + (int)({column}));\n"
            )
        )
        second = "0" if kind == "bytes" else "__bfloat162float(c[e])"
        single = "0" if kind == "bytes" else "__bfloat162float(bias[(int)(i % COLS)])"
        signature = (
            f"__global__ void __launch_bounds__(THREADS) map_kernel(const {element}* __restrict__ x, const {element}* __restrict__ bias,\n"
            f"    {element}* __restrict__ y, int64_t n, int64_t cols) {{\n"
        )
        grid = "(unsigned)(n / (THREADS * WIDTH * 2))"
        if "narrow" in defects:
            grid = "132 * (2048 / THREADS)"
            body = (
                "    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)\n"
                f"        y[i] = f(x[i], {single});\n"
            )
        else:
            loop = "#pragma unroll\n    for (int k = 0; k < 2; ++k) {\n        const int64_t i = ((blockIdx.x * 2ll + k) * THREADS + threadIdx.x) * WIDTH;\n"
            if "few_blocks" in defects:
                grid = str(blocks)
                loop = "#pragma unroll 2\n    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * WIDTH; i < n; i += (int64_t)gridDim.x * THREADS * WIDTH) {\n"
            body = (
                f"{loop}        alignas(16) {element} v[WIDTH];\n        *(uint4*)v = *(const uint4*)(x + i);\n{wide}#pragma unroll\n"
                f"        for (int e = 0; e < WIDTH; ++e) v[e] = f(v[e], {second});\n"
                "        *(uint4*)(y + i) = *(const uint4*)v;\n    }\n"
            )
        source = (
            "#include <cstdint>\n#include <cuda_bf16.h>\n"
            f"constexpr int COLS = {cols}, THREADS = {threads}, WIDTH = {width};\n{f}\n{signature}{body}}}\n\n"
            f'extern "C" int run(const {"uint8_t" if kind == "bytes" else "void"}* x_, const void* bias_, void* y_, int64_t n, int64_t cols, cudaStream_t stream) {{\n'
            f"    auto x = (const {element}*)x_; auto bias = (const {element}*)bias_; auto y = ({element}*)y_;\n"
            f"{launch('map_kernel', grid, 'THREADS', 'x, bias, y, n, cols')}    return cudaGetLastError();\n}}\n"
        )
        copy = "x = x.clone()\n" if "clone" in defects else ""
        bias = "x" if kind == "bytes" else "self.bias"
        forward = f"x:\n{copy}y = torch.empty_like(x)\nlib.run(x, {bias}, y, x.numel(), x.shape[1])\nreturn y"
        parameters = (
            "" if kind == "bytes" else "self.bias = nn.Parameter(torch.randn(sizes[0], dtype=torch.bfloat16))"
        )
        return Kernel(task, candidate(source, forward, parameters))

    return make


FAMILIES: tuple[Family, ...] = (
    Family(
        "map_cuda",
        "cuda",
        "cuda",
        _map(_LIGHT),
        _ACCESS | _HOST | {"torch_chain": ("unfused_chain",), "double_math": ("double_precision",)},
        _APART,
    ),
    Family(
        "math_cuda",
        "cuda",
        "cuda",
        _map(_MATH),
        {kind: names for kind, names in _ACCESS.items() if kind != "int_division"}
        | _HOST
        | {"torch_chain": ("unfused_chain",), "slow_math": ("special_functions",)},
        _APART,
    ),
    Family(
        "iterated_cuda",
        "cuda",
        "cuda",
        _map(_HEAVY),
        {"divergence": ("divergence",), "double_math": ("double_precision",), "clone": ("needless_copies",)},
        _APART,
    ),
    Family(
        "bfloat16_cuda",
        "cuda",
        "cuda",
        _narrow("bfloat16"),
        {
            "narrow": ("narrow_access",),
            "conversions": ("precision_conversions",),
            "int_division": ("integer_arithmetic",),
            "few_blocks": ("low_parallelism",),
            "clone": ("needless_copies",),
        },
        exclude(("narrow", "conversions", "int_division", "few_blocks")),
    ),
    Family(
        "bytes_cuda",
        "cuda",
        "cuda",
        _narrow("bytes"),
        {"narrow": ("narrow_access",), "few_blocks": ("low_parallelism",), "clone": ("needless_copies",)},
        exclude(("narrow", "few_blocks")),
    ),
)
