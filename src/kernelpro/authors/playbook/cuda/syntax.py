"""CUDA words: what CUDA C++ says otherwise than C++, and the functions that every kernel may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import STORAGE_TYPES as CPP_STORED
from kernelpro.authors.playbook.cpp.syntax import CppPrinter, arithmetic_type
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar

STORED = {**CPP_STORED, "float16": "__half", "bfloat16": "__nv_bfloat16"}
"""How tensors hold a type."""
REDUCE_OPERATORS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
"""The prelude's names for kinds of reduction."""
_FLOAT = {"abs": "fabsf", "round": "rintf", "pow": "powf", "fmod": "fmodf"}
_DOUBLE = {"abs": "fabs", "round": "rint"}
_FAST = {"exp": "__expf", "log": "__logf", "div": "__fdividef"}
"""Of float, to a few units in the last place, in one or two instructions; they stand for CUDA's own where a design says so."""
_CHEAP = {op: f"cheap_{op}" for op in APPROXIMABLE_FUNCTIONS}
FAST_FLAGS = ("-ftz=true", "-prec-sqrt=false")
"""What goes with them: without the first, half of their instructions look after numbers below 1e-38."""


def identity(kind: str, ctype: str) -> str:
    """What a reduction begins with."""
    return f"{REDUCE_OPERATORS[kind]}::start<{ctype}>()"


def combined(kind: str, a: str, b: str) -> str:
    return f"{REDUCE_OPERATORS[kind]}::of({a}, {b})"


class CudaPrinter(CppPrinter):
    """Prints expressions for a thread; loop variables become what the thread makes of its own number."""

    def __init__(self, math_mode: str, pointers: Mapping[str, str]):
        self.pointers = dict(pointers)
        super().__init__(False, self.pointers)
        self._fast_functions = {"library": {}, "fast": _FAST, "approximate": _FAST | _CHEAP}[math_mode]
        self.loop_indices: Mapping[LoopVar, IndexExpr] = {}
        """Where the thread stands: an index for each loop variable."""
        self.row_suffix = ""
        """What is appended to the name of a number that belongs to a row."""

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
        return super().index(self.resolve(index), names)

    def resolve(self, index: IndexExpr) -> IndexExpr:
        return index.substitute(self.loop_indices)

    def pointer(self, tensor: str) -> str:
        return self.pointers[tensor]

    def load(self, tensor: str, index: str, dtype: str) -> str:
        text = f"{self.pointers[tensor]}[{index}]"
        return f"float({text})" if dtype in ("float16", "bfloat16") else text

    def stored(self, tensor: str, index: str, held: str, text: str, dtype: str) -> str:
        return f"{self.pointers[tensor]}[{index}] = {STORED[held]}({text});"

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        kind = arithmetic_type(node.dtype)
        if op in ("max", "min"):  # of one type: whole numbers are printed without theirs
            return f"{'larger' if op == 'max' else 'smaller'}({', '.join(f'{kind}({arg})' for arg in args)})"
        if kind not in ("float", "double") or op in ("cast", "neg", "not"):
            return super().operator(op, args, node)
        given = ", ".join(args)
        if kind == "float" and op in self._fast_functions:
            return f"{self._fast_functions[op]}({given})"
        if op in _LIBRARY_FUNCTIONS:
            return (
                f"{_FLOAT.get(op, f'{op}f')}({given})"
                if kind == "float"
                else f"{_DOUBLE.get(op, op)}({given})"
            )
        return super().operator(op, args, node)

    def reference(self, node: Expr, names: Names) -> str:
        return f"{node.data}{self.row_suffix}" if node.op == "row" else str(node.data)


_LIBRARY_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "trunc"),
    *("abs", "round", "pow", "fmod"),
)


def headers(dtypes: set[str]) -> str:
    found = ["#include <cuda_bf16.h>"] if "bfloat16" in dtypes else []
    found += ["#include <cuda_fp16.h>"] if "float16" in dtypes else []
    return "\n".join(["#include <cmath>", "#include <cstdint>", "#include <cstring>", *found])


def indented(lines: Iterable[str]) -> list[str]:
    return [line if line.startswith("#") else "    " + line for line in lines]


PRELUDE = """\
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float smaller(float a, float b) { return fminf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }
__device__ inline double smaller(double a, double b) { return fmin(a, b); }
template <class T> __device__ inline T larger(T a, T b) { return a > b ? a : b; }
template <class T> __device__ inline T smaller(T a, T b) { return a < b ? a : b; }
template <class T> struct Range {  // of whole numbers
    static __device__ T least() { return T(-1) > T(0) ? T(0) : T(T(1) << (8 * sizeof(T) - 1)); }
    static __device__ T most() { return T(~least()); }
};
template <> struct Range<float> {
    static __device__ float least() { return -INFINITY; }
    static __device__ float most() { return INFINITY; }
};
template <> struct Range<double> {
    static __device__ double least() { return -HUGE_VAL; }
    static __device__ double most() { return HUGE_VAL; }
};
struct Sum {
    template <class T> static __device__ T start() { return T(0); }
    template <class T> static __device__ T of(T a, T b) { return a + b; }
};
struct Prod {
    template <class T> static __device__ T start() { return T(1); }
    template <class T> static __device__ T of(T a, T b) { return a * b; }
};
struct Max {
    template <class T> static __device__ T start() { return Range<T>::least(); }
    template <class T> static __device__ T of(T a, T b) { return larger(a, b); }
};
struct Min {
    template <class T> static __device__ T start() { return Range<T>::most(); }
    template <class T> static __device__ T of(T a, T b) { return smaller(a, b); }
};

// N neighbouring elements at once, in accesses of up to 16 bytes; the address must be a multiple of their size.
template <int BYTES> struct Word;
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };
template <class C, int N, class T> __device__ inline void read(C (&into)[N], const T* from) {
    constexpr int EACH = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<EACH * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        const W word = __ldg((const W*)(from + i));
        T piece[EACH];
        memcpy(piece, &word, sizeof word);
#pragma unroll
        for (int j = 0; j < EACH; ++j) into[i + j] = C(piece[j]);
    }
}
template <class T, class C, int N> __device__ inline void write(T* to, const C (&from)[N]) {
    constexpr int EACH = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<EACH * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        T piece[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) piece[j] = T(from[i + j]);
        W word;
        memcpy(&word, piece, sizeof word);
        __stwb((W*)(to + i), word);
    }
}
"""

CHEAP_FORMS = {
    "log1p": """\
__device__ inline float cheap_log1p(float x) { return __logf(1.0f + x); }
""",
    "tanh": """\
__device__ inline float cheap_tanh(float x) {  // 1 - 2 / (e^2x + 1), to 1e-7
    return 1.0f - __fdividef(2.0f, exp2f(2.88539008f * x) + 1.0f);
}
""",
    "erf": """\
__device__ inline float cheap_erf(float x) {  // 1 - 2^p(|x|), to 1e-7
    const float t = fabsf(x);
    float p = -4.53608045e-5f;
    p = p * t + 4.45523037e-4f;
    p = p * t - 1.48948363e-3f;
    p = p * t - 7.74572720e-4f;
    p = p * t + 2.82536410e-2f;
    p = p * t - 1.48481607e-1f;
    p = p * t - 9.18416381e-1f;
    p = p * t - 1.62790859f;
    return copysignf(1.0f - exp2f(p * t), x);
}
""",
}
"""By their absolute error, which is float32's."""

REDUCE_LANES = """\
// One number of all LANES neighbouring threads, given to each of them; `part` has a place for every warp of the block.
template <class Op, int LANES, class T> __device__ inline T joined(T value, T* part) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) value = Op::of(value, T(__shfl_xor_sync(~0u, value, step)));
    if constexpr (LANES > 32) {
        constexpr int WARPS = LANES / 32;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) part[warp] = value;
        __syncthreads();
        value = part[warp / WARPS * WARPS + lane % WARPS];
#pragma unroll
        for (int step = WARPS / 2; step > 0; step /= 2) value = Op::of(value, T(__shfl_xor_sync(~0u, value, step)));
    }
    return value;
}
"""

SCAN_LANES = """\
// What lies before each of a thread's U pieces, pieces of the same number lying side by side along LANES neighbouring threads:
// in come the pieces' own results, out go those of all before them; `carry` goes on to the next call.
template <class Op, int LANES, int U, class T> __device__ inline void running(T (&totals)[U], T& carry, T* part) {
    constexpr int WIDTH = LANES < 32 ? LANES : 32, WARPS = LANES > 32 ? LANES / 32 : 1;
    const int lane = threadIdx.x % WIDTH, warp = threadIdx.x % LANES / WIDTH;
    part += threadIdx.x / LANES * (U * WARPS);
    T before[U], through[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        through[u] = totals[u];
#pragma unroll
        for (int step = 1; step < WIDTH; step *= 2) {
            const T left = T(__shfl_up_sync(~0u, through[u], step, WIDTH));
            if (lane >= step) through[u] = Op::of(left, through[u]);
        }
        before[u] = T(__shfl_up_sync(~0u, through[u], 1, WIDTH));
        if (lane == 0) before[u] = Op::template start<T>();
        if (WARPS > 1 && lane == WIDTH - 1) part[u * WARPS + warp] = through[u];
    }
    if constexpr (WARPS == 1) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            totals[u] = Op::of(carry, before[u]);
            carry = Op::of(carry, T(__shfl_sync(~0u, through[u], WIDTH - 1, WIDTH)));
        }
    } else {
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; ++u) {
            T warps = lane < WARPS ? part[u * WARPS + lane] : Op::template start<T>();
#pragma unroll
            for (int step = 1; step < WARPS; step *= 2) {
                const T left = T(__shfl_up_sync(~0u, warps, step));
                if (lane >= step) warps = Op::of(left, warps);
            }
            const T earlier = T(__shfl_sync(~0u, warps, warp > 0 ? warp - 1 : 0));
            totals[u] = Op::of(carry, warp > 0 ? Op::of(earlier, before[u]) : before[u]);
            carry = Op::of(carry, T(__shfl_sync(~0u, warps, WARPS - 1)));
        }
        __syncthreads();
    }
}
"""

REDUCE_ACROSS = """\
// One number of the LANES threads that lie WIDTH apart, for each of N rows, given to all of them.
template <class Op, int LANES, int WIDTH, class T, int N> __device__ inline void across(T (&values)[N], T* part) {
    if constexpr (LANES > 1) {
        const int lane = threadIdx.x / WIDTH, x = threadIdx.x % WIDTH;
#pragma unroll
        for (int j = 0; j < N; ++j) part[(lane * N + j) * WIDTH + x] = values[j];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < N * WIDTH; i += LANES * WIDTH) {
            T value = part[i];
#pragma unroll
            for (int other = 1; other < LANES; ++other) value = Op::of(value, part[other * N * WIDTH + i]);
            part[i] = value;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = part[j * WIDTH + x];
    }
}
// The same of the lanes before one's own.
template <class Op, int LANES, int WIDTH, class T, int N> __device__ inline void before(T (&values)[N], T* part) {
    const int lane = threadIdx.x / WIDTH, x = threadIdx.x % WIDTH;
#pragma unroll
    for (int j = 0; j < N; ++j) part[(lane * N + j) * WIDTH + x] = values[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) {
        values[j] = Op::template start<T>();
        for (int other = 0; other < lane; ++other) values[j] = Op::of(values[j], part[(other * N + j) * WIDTH + x]);
    }
}
"""
