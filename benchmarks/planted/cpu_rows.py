"""Families of reductions and normalizations over the rows of a matrix on the CPU."""

from __future__ import annotations

import random

from planted.case import Family, Kernel, Write, exclude, write_task
from planted.cpu_text import COPIES, HELPERS, PARAMETERS, candidate, schedule, sizes

_REDUCTIONS = (
    ("(x * self.weight).sum(-1)", "v * w", "(v * w) / p * 2.5f"),
    ("((x - self.weight) ** 2).sum(-1)", "(v - w) * (v - w)", "(v - w) / p * (v - w) * 2.5f"),
    (
        "(x * x * 0.5 + x.abs() * 0.25).sum(-1)",
        "v * v * 0.5f + std::fabs(v) * 0.25f",
        "v * v / r * 3.0f + std::fabs(v) / s * 0.25f",
    ),
)


def _reduce(rng: random.Random, defects: frozenset[str]) -> Kernel:
    rows, dim = sizes(rng, (5_000_000, 8_000_000))
    reference, expression, divided = rng.choice(_REDUCTIONS)
    share = rng.randrange(70, 87)
    kind = "double" if "double_math" in defects else "float"
    value = divided if "division" in defects else expression
    if "double_math" in defects:
        value = (
            value.replace("2.5f", "2.5")
            .replace("0.5f", "0.5")
            .replace("0.25f", "0.25")
            .replace("3.0f", "3.0")
        )
    pragma = schedule("rows", defects, share)
    inline = "__attribute__((noinline)) " if "no_inline" in defects else "inline "
    f = f"static {inline}{kind} g({kind} v, {kind} w, {kind} p, {kind} r, {kind} s) {{ return {value}; }}\n"
    signature = (
        "const float* x, const float* w_, float* y, int64_t rows, int64_t dim, const int32_t* at, float p, "
        "float r, float s"
    )
    head = f'{HELPERS}{f}\nextern "C" int run({signature}) {{\n'
    head += "    const float* __restrict__ w = w_;\n"
    source = head + _reduce_loops(defects, kind, pragma) + "    return 0;\n}\n"
    task = write_task(f"x: {reference}", f"torch.randn({rows}, {dim})", f"[{dim}]", parameters=PARAMETERS)
    arguments = "self.weight, y, *x.shape, self.at, 2.5, 6.0, 1.0"
    call = f"y = x.new_zeros(len(x))\nlib.run(x, {arguments})\nreturn y"
    if "row_calls" in defects:
        call = (
            "y = x.new_zeros(len(x))\nfor a, b in zip(x.split(8), y.split(8)):\n"
            "    lib.run(a, self.weight, b, *a.shape, self.at, 2.5, 6.0, 1.0)\nreturn y"
        )
    elif "clone" in defects:
        call = f"x = x.clone()\n{call}"
    parameters = PARAMETERS + (
        '\nself.register_buffer("at", torch.randperm(sizes[0], generator=torch.Generator().manual_seed(1))'
        ".to(torch.int32), persistent=False)"
    )
    return Kernel(task, candidate(source, f"x:\n{call}", parameters))


def _reduce_loops(defects: frozenset[str], kind: str, pragma: str) -> str:
    call = "g(from[j], w[j], p, r, s)"
    rows = f"{pragma}\n    for (int64_t i = 0; i < rows; ++i) {{\n        const float* from = x + i * dim;\n"
    if "serial_sum" in defects:
        return f"{rows}        {kind} sum = 0;\n        for (int64_t j = 0; j < dim; ++j) sum += {call};\n        y[i] = sum;\n    }}\n"
    if "memory_sum" in defects:
        return f"{rows}        y[i] = 0;\n        for (int64_t j = 0; j < dim; ++j) y[i] += {call};\n    }}\n"
    if "atomics" in defects:
        return (
            "#pragma omp parallel for collapse(2) schedule(static)\n    for (int64_t i = 0; i < rows; ++i)\n"
            "        for (int64_t j = 0; j < dim; ++j) {\n            const float* from = x + i * dim;\n"
            f"            const float add = {call};\n#pragma omp atomic\n            y[i] += add;\n        }}\n"
        )
    if "column_walk" in defects:
        return (
            f"{pragma}\n    for (int64_t block = 0; block < rows; block += rows / 4)\n"
            "        for (int64_t j = 0; j < dim; ++j)\n"
            "            for (int64_t i = block; i < block + rows / 4; ++i) {\n"
            f"                const float* from = x + i * dim;\n                y[i] += {call};\n            }}\n"
        )
    if "false_sharing" in defects:
        return (
            "#pragma omp parallel for schedule(static, 1)\n    for (int64_t i = 0; i < rows; ++i) {\n"
            "        const float* from = x + i * dim;\n        volatile float* sum = y + i;\n        *sum = 0;\n"
            f"        for (int64_t j = 0; j < dim; ++j) *sum = *sum + {call};\n    }}\n"
        )
    if "gather" in defects:
        call = "g(from[at[j + k]], w[at[j + k]], p, r, s)"
    else:
        call = "g(from[j + k], w[j + k], p, r, s)"
    exit_test = "if (!(from[j] < 1e30f)) break;" if "early_exit" in defects else ""
    if exit_test:
        return (
            f"{rows}        {kind} sum = 0, sum2 = 0, sum3 = 0, sum4 = 0;\n        for (int64_t j = 0; j < dim; j += 4) {{\n"
            "            if (!(from[j] < 1e30f)) break;\n"
            + "".join(
                f"            sum{n or ''} += g(from[j + {k}], w[j + {k}], p, r, s);\n"
                for k, n in enumerate(("", 2, 3, 4))
            )
            + "        }\n        y[i] = sum + sum2 + sum3 + sum4;\n    }\n"
        )
    return (
        f"{rows}        {kind} parts[LANES] = {{}}, sum = 0;\n        for (int64_t j = 0; j < dim; j += LANES)\n#pragma omp simd\n"
        f"            for (int k = 0; k < LANES; ++k) parts[k] += {call};\n"
        "        for (auto part : parts) sum += part;\n        y[i] = sum;\n    }\n"
    )


def _normalize(kind: str) -> Write:
    """A family of normalizations: rms, softmax or layer."""

    def write(rng: random.Random, defects: frozenset[str]) -> Kernel:
        rows, dim = sizes(rng, (5_000_000, 7_900_000))
        share = rng.randrange(70, 87)
        real = "double" if "double_math" in defects else "float"
        pragma = schedule("rows", defects, share)
        head = (
            f'{HELPERS}extern "C" int run(const float* x, const float* w_, const float* b_, '
            "float* y, int64_t rows, int64_t dim) {\n    const float *__restrict__ w = w_, *__restrict__ b = b_;\n"
        )
        loop = f"{pragma}\n    for (int64_t i = 0; i < rows; ++i) {{\n"
        loop += "        const float* __restrict__ from = x + i * dim;\n        float* __restrict__ to = y + i * dim;\n"
        reference = {
            "rms": "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias",
            "softmax": "torch.softmax(x * 1.5, -1) * self.weight + self.bias",
            "layer": "torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)",
        }[kind]
        source = head + loop + _normalize_body(kind, defects, real) + "    }\n    return 0;\n}\n"
        task = write_task(
            f"x: {reference}", f"torch.randn({rows}, {dim})", f"[{dim}]", parameters=PARAMETERS
        )
        call = "y = torch.empty_like(x)\nlib.run(x, self.weight, self.bias, y, *x.shape)\nreturn y"
        if "torch_chain" in defects:
            call = {
                "rms": "t = x * x\nt = t.mean(-1, keepdim=True)\nt = torch.rsqrt(t + 1e-5)\nt = x * t\nt = t * self.weight\nreturn t + self.bias",
                "softmax": "t = x * 1.5\nt = t - t.amax(-1, keepdim=True)\nt = torch.exp(t)\nt = t / t.sum(-1, keepdim=True)\nreturn t * self.weight + self.bias",
                "layer": "t = x - x.mean(-1, keepdim=True)\nv = (t * t).mean(-1, keepdim=True)\nt = t * torch.rsqrt(v + 1e-5)\nreturn t * self.weight + self.bias",
            }[kind]
        elif "row_calls" in defects:
            call = (
                "y = torch.empty_like(x)\nfor a, b in zip(x.split(8), y.split(8)):\n"
                "    lib.run(a, self.weight, self.bias, b, *a.shape)\nreturn y"
            )
        elif "clone" in defects:
            call = f"x = x.clone()\n{call}"
        return Kernel(task, candidate(source, f"x:\n{call}", PARAMETERS))

    return write


def _normalize_body(kind: str, defects: frozenset[str], real: str) -> str:
    suffix = "f" if real == "float" else ""
    sums = (
        f"        {real} parts[LANES] = {{}}, total = 0;\n        for (int64_t j = 0; j < dim; j += LANES)\n#pragma omp simd\n"
        "            for (int k = 0; k < LANES; ++k) parts[k] += TERM;\n        for (auto part : parts) total += part;\n"
    )
    exp = "std::exp" if "libm" in defects else "fast_exp"
    write = "        for (int64_t j = 0; j < dim; ++j) to[j] = VALUE * w[j] + b[j];\n"
    if kind == "rms":
        body = sums.replace("TERM", f"({real})from[j + k] * from[j + k]")
        body += f"        const {real} root = std::sqrt(total / dim + 1e-5{suffix}), inverse = 1 / root;\n"
        body += write.replace(
            "VALUE", f"({real})from[j] {'/ root' if 'division' in defects else '* inverse'}"
        )
    elif kind == "softmax":
        body = "        float total = 0;\n#pragma omp simd reduction(+ : total)\n"
        body += f"        for (int64_t j = 0; j < dim; ++j) {{ const float t = {exp}(from[j] * 1.5f); to[j] = t; total += t; }}\n"
        body += f"        const {real} root = total, inverse = 1 / total;\n"
        body += write.replace("VALUE", f"({real})to[j] {'/ root' if 'division' in defects else '* inverse'}")
    else:
        if "row_passes" in defects:
            body = (
                sums.replace("TERM", f"({real})from[j + k]") + f"        const {real} mean = total / dim;\n"
            )
            body += "        {\n" + sums.replace(
                "TERM", f"(({real})from[j + k] - mean) * (({real})from[j + k] - mean)"
            )
            body += "        to[0] = total;\n        }\n"
            body += (
                f"        const {real} root = std::sqrt(to[0] / dim + 1e-5{suffix}), inverse = 1 / root;\n"
            )
        else:
            body = f"        {real} total = 0, square = 0;\n#pragma omp simd reduction(+ : total, square)\n"
            body += f"        for (int64_t j = 0; j < dim; ++j) {{ const {real} t = from[j]; total += t; square += t * t; }}\n"
            body += f"        const {real} mean = total / dim, root = std::sqrt(square / dim - mean * mean + 1e-5{suffix}), inverse = 1 / root;\n"
        body += write.replace(
            "VALUE", f"(({real})from[j] - mean) {'/ root' if 'division' in defects else '* inverse'}"
        )
    return body


_SERIAL = ("cpu_dependency_chain",)
_REDUCE_DEFECTS: dict[str, tuple[str, ...]] = {
    "single_thread": ("cpu_single_thread",),
    "imbalance": ("cpu_imbalance",),
    "column_walk": ("cpu_strided_access",),
    "serial_sum": _SERIAL,
    "memory_sum": _SERIAL,
    "double_math": ("cpu_double_precision",),
    "division": ("cpu_divisions",),
    "atomics": ("cpu_false_sharing",),
    "false_sharing": ("cpu_false_sharing", "cpu_dependency_chain"),
    "early_exit": ("cpu_scalar_code", "cpu_dependency_chain"),
    "no_inline": ("cpu_scalar_code",),
    "gather": ("cpu_indirect_access",),
    "row_calls": ("cpu_call_overhead",),
    "clone": COPIES,
}
_REDUCE_APART = exclude(
    (
        "column_walk",
        "serial_sum",
        "memory_sum",
        "atomics",
        "false_sharing",
        "early_exit",
        "gather",
        "no_inline",
    ),
    ("single_thread", "imbalance", "atomics", "false_sharing", "column_walk"),
    *(("row_calls", kind) for kind in _REDUCE_DEFECTS if kind != "row_calls"),
    *(("no_inline", kind) for kind in ("double_math", "division")),
    *(
        ("double_math", kind)
        for kind in (
            "serial_sum",
            "memory_sum",
            "atomics",
            "false_sharing",
            "early_exit",
            "division",
            "gather",
        )
    ),
    *(
        ("division", kind)
        for kind in ("atomics", "false_sharing", "memory_sum", "serial_sum", "early_exit", "gather")
    ),
    ("imbalance", "clone"),
    ("single_thread", "clone"),
)
_NORMALIZE_DEFECTS: dict[str, tuple[str, ...]] = {
    "single_thread": ("cpu_single_thread",),
    "imbalance": ("cpu_imbalance",),
    "double_math": ("cpu_double_precision",),
    "division": ("cpu_divisions",),
    "row_calls": ("cpu_call_overhead",),
    "torch_chain": ("cpu_unfused_chain",),
    "clone": COPIES,
}
_NORMALIZE_APART = exclude(
    ("single_thread", "imbalance"),
    ("torch_chain", "row_calls", "clone"),
    ("torch_chain", "row_passes"),
    ("double_math", "division"),
    *((host, kind) for host in ("torch_chain", "row_calls") for kind in _NORMALIZE_DEFECTS if kind != host),
    ("imbalance", "clone"),
    ("single_thread", "clone"),
)

FAMILIES: tuple[Family, ...] = (
    Family("reduction", "cpu", "cpp", _reduce, _REDUCE_DEFECTS, _REDUCE_APART),
    Family("normalization", "cpu", "cpp", _normalize("rms"), _NORMALIZE_DEFECTS, _NORMALIZE_APART),
    Family(
        "layer_norm",
        "cpu",
        "cpp",
        _normalize("layer"),
        _NORMALIZE_DEFECTS | {"row_passes": ("cpu_repeated_passes",)},
        _NORMALIZE_APART,
    ),
)
