"""Families of element-wise maps over the rows of a matrix on the CPU."""

from __future__ import annotations

import random
from dataclasses import dataclass

from planted.case import Family, Kernel, Write, exclude, write_task
from planted.cpu_text import COPIES, HELPERS, PARAMETERS, candidate, schedule, sizes


@dataclass(frozen=True)
class _Function:
    """An element-wise function of v, w and b, in torch and in C++ over the type T."""

    torch: str
    code: str
    math: str = ""
    """The same with libm; empty: it has no special function."""
    divided: str = ""
    """The same with divisions by loop-invariant values p and q."""
    chain: str = ""
    """As separate torch operators."""


_MAPS = (
    _Function(
        "torch.relu(x * self.weight + self.bias) * 0.4 + x * 0.125",
        "const T t = v * w + b; return (t > 0 ? t : T(0)) * T(0.4f) + v * T(0.125f);",
        divided="const T t = v * w + b; return (t > 0 ? t : T(0)) / p + v / q;",
        chain="x = x.contiguous()\nt = x * self.weight\nt = t + self.bias\nt = torch.relu(t)\nreturn t * 0.4 + x * 0.125",
    ),
    _Function(
        "x * torch.clamp(x + 3, 0, 6) / 6 * self.weight + self.bias",
        "T t = v + T(3); t = t < 0 ? T(0) : t; t = t > 6 ? T(6) : t; return v * t * T(1 / 6.0) * w + b;",
        divided="T t = v + T(3); t = t < 0 ? T(0) : t; t = t > 6 ? T(6) : t; return v * t / r * w + b / s;",
        chain="t = torch.clamp(x + 3, 0, 6)\nt = x * t\nt = t / 6\nt = t * self.weight\nreturn t + self.bias",
    ),
    _Function(
        "((0.3 * x + self.weight) * x + self.bias) * x + 0.5",
        "return ((T(0.3f) * v + w) * v + b) * v + T(0.5f);",
        chain="t = 0.3 * x\nt = t + self.weight\nt = t * x\nt = t + self.bias\nreturn t * x + 0.5",
    ),
    _Function(
        "torch.nn.functional.silu(x) * self.weight + self.bias",
        "return v / (1.0f + fast_exp(-v)) * w + b;",
        math="return v / (1.0f + std::exp(-v)) * w + b;",
        chain="t = torch.exp(-x)\nt = 1 + t\nt = x / t\nt = t * self.weight\nreturn t + self.bias",
    ),
    _Function(
        "torch.tanh(x * self.weight) + self.bias",
        "return 1.0f - 2.0f / (1.0f + fast_exp(2.0f * v * w)) + b;",
        math="return std::tanh(v * w) + b;",
        chain="t = x * self.weight\nt = torch.tanh(t)\nreturn t + self.bias",
    ),
    _Function(
        "torch.exp(-x * x) * self.weight + self.bias",
        "return fast_exp(-v * v) * w + b;",
        math="return std::exp(-std::pow(v, 2.0f)) * w + b;",
        chain="t = x * x\nt = -t\nt = torch.exp(t)\nt = t * self.weight\nreturn t + self.bias",
    ),
)


def _map(functions: tuple[_Function, ...]) -> Write:
    """A family of element-wise kernels with one of these functions."""

    def write(rng: random.Random, defects: frozenset[str]) -> Kernel:
        rows, dim = sizes(rng, (5_000_000, 7_900_000))
        function, share, chunk = rng.choice(functions), rng.randrange(70, 87), rng.choice((64, 96, 128))
        copy_kind = rng.randrange(3)
        if dim % chunk:
            chunk = 64
        real = "double" if "double_math" in defects else "float"
        body = function.code
        if "libm" in defects:
            body = function.math
        elif "division" in defects:
            body = function.divided
        inline = "__attribute__((noinline))" if "no_inline" in defects else "inline"
        source = (
            f"{HELPERS}template <class T> static {inline} T f(T v, T w, T b, T p, T q, T r, T s) {{ {body} }}\n\n"
            'extern "C" int run(const float* x, const float* w_, const float* b_, float* y, int64_t rows,\n'
            "                   int64_t dim, const int32_t* at, float p, float q, float r, float s) {\n"
            "    const float *__restrict__ w = w_, *__restrict__ b = b_;\n"
            + _map_loops(
                defects,
                f"(float)f<{real}>(FROM, w[C], b[C], p, q, r, s)",
                schedule("rows", defects, share),
                chunk,
            )
            + "    return 0;\n}\n"
        )
        task = write_task(
            f"x: {function.torch}", f"torch.randn({rows}, {dim})", f"[{dim}]", parameters=PARAMETERS
        )
        return Kernel(task, _map_candidate(source, function, defects, copy_kind))

    return write


def _map_loops(defects: frozenset[str], call: str, pragma: str, chunk: int) -> str:
    def at(place: str, column: str) -> str:
        return call.replace("FROM", place).replace("C]", f"{column}]")

    if "flat_index" in defects:
        text = f"{pragma}\n    for (int64_t k = 0; k < rows * dim; ++k) {{ const int64_t c = k % dim;"
        return text + f" y[k / dim * dim + c] = {at('x[k]', 'c')}; }}\n"
    if "column_walk" in defects:
        text = pragma.replace("rows", "dim")
        return (
            f"{text}\n    for (int64_t j = 0; j < dim; ++j)\n        for (int64_t i = 0; i < rows; ++i) "
            f"y[i * dim + j] = {at('x[i * dim + j]', 'j')};\n"
        )
    if "big_temporary" in defects or "separate_passes" in defects:
        # beyond 32 MiB glibc returns a block to the system: a temporary of two arrays, in three passes
        large = "big_temporary" in defects
        keep = "static std::vector<float> kept(rows * dim);\n    float* t = kept.data();"
        if large:
            keep = "std::unique_ptr<float[]> kept(new float[2 * rows * dim]);\n    float* t = kept.get();"
        passes = [("x", "t", f"{at('from[j]', 'j')} * 2.0f"), ("t", "y", "from[j] * 0.5f")]
        if large:
            passes[1:] = [
                ("t", "(t + rows * dim)", "from[j] * 2.0f"),
                ("(t + rows * dim)", "y", "from[j] * 0.25f"),
            ]
        return f"    {keep}\n" + "".join(
            f"{pragma}\n    for (int64_t i = 0; i < rows; ++i) {{\n"
            f"        const float* __restrict__ from = {first} + i * dim; float* __restrict__ to = {last} + i * dim;\n"
            f"        for (int64_t j = 0; j < dim; ++j) to[j] = {value};\n    }}\n"
            for first, last, value in passes
        )
    if "tiny_regions" in defects:
        return (
            "    for (int64_t i = 0; i < rows; ++i) {\n"
            "        const float* __restrict__ from = x + i * dim; float* __restrict__ to = y + i * dim;\n"
            "#pragma omp parallel for simd schedule(static)\n"
            f"        for (int64_t j = 0; j < dim; ++j) to[j] = {at('from[j]', 'j')};\n    }}\n"
        )
    if "tiny_chunks" in defects:
        return (
            "#pragma omp parallel for schedule(dynamic, 1)\n"
            f"    for (int64_t k = 0; k < rows * dim / {chunk}; ++k) {{\n"
            f"        const int64_t first = k * {chunk}, c = first % dim;\n"
            "        const float* __restrict__ from = x + first; float* __restrict__ to = y + first;\n"
            f"        for (int64_t j = 0; j < {chunk}; ++j) to[j] = {at('from[j]', 'c + j')};\n"
            "    }\n"
        )
    if "early_exit" in defects:
        inner = f"if (!(from[j] < 1e30f)) break; to[j] = {at('from[j]', 'j')};"
    elif "gather" in defects:
        inner = f"const int32_t k = at[j]; to[k] = {at('from[k]', 'k')};"
    else:
        inner = f"to[j] = {at('from[j]', 'j')};"
    return (
        f"{pragma}\n    for (int64_t i = 0; i < rows; ++i) {{\n"
        "        const float* __restrict__ from = x + i * dim; float* __restrict__ to = y + i * dim;\n"
        f"        for (int64_t j = 0; j < dim; ++j) {{ {inner} }}\n    }}\n"
    )


def _map_candidate(source: str, function: _Function, defects: frozenset[str], kind: int) -> str:
    parameters = PARAMETERS + (
        '\nself.register_buffer("at", torch.randperm(sizes[0], generator=torch.Generator().manual_seed(1))'
        ".to(torch.int32), persistent=False)"
    )
    arguments = "self.weight, self.bias, y, *x.shape, self.at, 2.5, 8.0, 6.0, 1.0"
    call = f"y = torch.empty_like(x)\nlib.run(x, {arguments})\nreturn y"
    if "torch_chain" in defects:
        call = function.chain
    elif "row_calls" in defects:
        call = (
            "y = torch.empty_like(x)\nfor a, b in zip(x.split(8), y.split(8)):\n"
            "    lib.run(a, self.weight, self.bias, b, *a.shape, self.at, 2.5, 8.0, 6.0, 1.0)\nreturn y"
        )
    elif "clone" in defects:
        call = (
            f"x = x.clone()\n{call}",
            f"{call.removesuffix('return y')}return y.clone()",
            f"x = x.double().float()\n{call}",
        )[kind]
    return candidate(source, f"x:\n{call}", parameters)


_OVERHEAD = ("cpu_parallel_overhead",)
_MAP_DEFECTS: dict[str, tuple[str, ...]] = {
    "single_thread": ("cpu_single_thread",),
    "imbalance": ("cpu_imbalance",),
    "column_walk": ("cpu_strided_access",),
    "flat_index": ("cpu_divisions",),
    "early_exit": ("cpu_scalar_code",),
    "no_inline": ("cpu_scalar_code",),
    "gather": ("cpu_indirect_access",),
    "big_temporary": ("cpu_page_faults", "cpu_excess_traffic"),
    "separate_passes": ("cpu_excess_traffic",),
    "tiny_regions": _OVERHEAD,
    "tiny_chunks": _OVERHEAD,
    "row_calls": ("cpu_call_overhead",),
    "torch_chain": ("cpu_unfused_chain",),
    "clone": COPIES,
}
_MAP_APART = exclude(
    (
        "flat_index",
        "column_walk",
        "big_temporary",
        "separate_passes",
        "tiny_regions",
        "tiny_chunks",
        "early_exit",
        "gather",
    ),
    ("torch_chain", "row_calls", "clone"),
    *(
        ("torch_chain", kind)
        for kind in (*_MAP_DEFECTS, "double_math", "division", "libm")
        if kind != "torch_chain"
    ),
    *(("row_calls", kind) for kind in _MAP_DEFECTS if kind != "row_calls"),
    *(
        (first, second)
        for first in ("single_thread", "imbalance")
        for second in ("single_thread", "imbalance", "tiny_regions", "tiny_chunks", "flat_index", "clone")
        if first != second
    ),
    ("libm", "no_inline"),
    ("no_inline", "column_walk"),
    ("big_temporary", "clone"),
    ("separate_passes", "clone"),
    ("no_inline", "flat_index"),
    ("no_inline", "gather"),
    ("libm", "early_exit"),
    ("libm", "column_walk"),
    ("libm", "flat_index"),
    ("libm", "gather"),
    ("double_math", "early_exit"),
    ("double_math", "no_inline"),
)

FAMILIES: tuple[Family, ...] = (
    Family(
        "map",
        "cpu",
        "cpp",
        _map(_MAPS[:2]),
        _MAP_DEFECTS | {"double_math": ("cpu_double_precision",), "division": ("cpu_divisions",)},
        _MAP_APART
        | exclude(
            ("division", "double_math"),
            ("division", "flat_index"),
            ("division", "no_inline"),
            ("division", "early_exit"),
        ),
    ),
    Family(
        "polynomial",
        "cpu",
        "cpp",
        _map(_MAPS[2:3]),
        _MAP_DEFECTS | {"double_math": ("cpu_double_precision",)},
        _MAP_APART,
    ),
    Family(
        "activation", "cpu", "cpp", _map(_MAPS[3:]), _MAP_DEFECTS | {"libm": ("cpu_math_calls",)}, _MAP_APART
    ),
)
