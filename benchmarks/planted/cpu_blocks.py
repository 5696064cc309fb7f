"""Families on the CPU that move data between rows: column sums, bins, transposes, products."""

from __future__ import annotations

import random

from planted.case import Family, Kernel, exclude, write_task
from planted.cpu_text import HELPERS, candidate, schedule


def _column_sum(rng: random.Random, defects: frozenset[str]) -> Kernel:
    dim = 64 * rng.choice((8, 12, 16, 24, 32))
    rows = rng.randrange(5_000_000, 8_000_000) // dim // 16 * 16
    reference, term = rng.choice((("x", "v"), ("x * x", "v * v"), ("x.abs() + 0.5", "std::fabs(v) + 0.5f")))
    share = rng.randrange(70, 87)
    real = "double" if "double_math" in defects else "float"
    f = f"static inline {real} g({real} v) {{ return {term}; }}\n"
    pragma = schedule("dim", defects, share)
    threads = "1" if "single_thread" in defects else "omp_get_max_threads()"
    if "column_walk" in defects:
        loops = (
            f"{pragma}\n    for (int64_t j = 0; j < dim; ++j) {{\n        {real} sum = 0, other = 0;\n"
            "        for (int64_t i = 0; i < rows; i += 2) {\n            sum += g(x[i * dim + j]);\n"
            "            other += g(x[i * dim + dim + j]);\n        }\n        y[j] = sum + other;\n    }\n"
        )
    elif "atomics" in defects:
        loops = (
            "#pragma omp parallel for schedule(static)\n    for (int64_t i = 0; i < rows; ++i)\n"
            "        for (int64_t j = 0; j < dim; ++j) {\n            const float add = g(x[i * dim + j]);\n"
            "#pragma omp atomic\n            y[j] += add;\n        }\n"
        )
    else:
        index = "parts[j * threads + me]" if "false_sharing" in defects else "mine[j]"
        cut = f"rows * {share} / 100" if "imbalance" in defects else "rows / threads"
        loops = (
            f"    const int threads = {threads};\n    std::vector<{real}> parts(dim * threads);\n"
            "#pragma omp parallel num_threads(threads)\n    {\n        const int me = omp_get_thread_num();\n"
            f"        const int64_t first = me * ({cut}), last = me + 1 == threads ? rows : std::min(rows, first + {cut});\n"
            f"        {real}* __restrict__ mine = parts.data() + me * dim;\n        (void)mine;\n"
            "        for (int64_t i = first; i < last; ++i) {\n            const float* __restrict__ from = x + i * dim;\n"
            f"            for (int64_t j = 0; j < dim; ++j) {index} += g(from[j]);\n        }}\n    }}\n"
            "    for (int64_t j = 0; j < dim; ++j) {\n        double sum = 0;\n"
            f"        for (int64_t t = 0; t < threads; ++t) sum += {'parts[j * threads + t]' if 'false_sharing' in defects else 'parts[t * dim + j]'};\n"
            "        y[j] = sum;\n    }\n"
        )
    signature = 'extern "C" int run(const float* x, float* y, int64_t rows, int64_t dim) {\n'
    source = f"{HELPERS}{f}\n{signature}{loops}    return 0;\n}}\n"
    call = "y = x.new_zeros(x.shape[1])\nlib.run(x, y, *x.shape)\nreturn y"
    if "clone" in defects:
        call = f"x = x.clone()\n{call}"
    task = write_task(f"x: ({reference}).sum(0)", f"torch.randn({rows}, {dim})")
    return Kernel(task, candidate(source, f"x:\n{call}"))


def _bins(rng: random.Random, defects: frozenset[str]) -> Kernel:
    count = 32 * rng.randrange(2, 24)
    n = rng.randrange(200, 500) * 8192
    share = rng.randrange(70, 87)
    pragma = "" if "single_thread" in defects else "#pragma omp parallel"
    chunk = (
        f"schedule(static, std::max<int64_t>(1, n / RUN * {share} / 100))"
        if "imbalance" in defects
        else "schedule(static)"
    )
    inner = "" if "single_thread" in defects else f"#pragma omp for {chunk}"
    critical = "" if "single_thread" in defects else "#pragma omp critical"
    if "atomics" in defects:
        loops = (
            "#pragma omp parallel for schedule(static)\n    for (int64_t i = 0; i < n; ++i) {\n#pragma omp atomic\n"
            "        y[index[i]] += x[i];\n    }\n"
        )
    elif "locks" in defects:
        loops = (
            "#pragma omp parallel for schedule(static)\n    for (int64_t i = 0; i < n; i += 8) {\n#pragma omp critical\n"
            "        for (int64_t k = i; k < i + 8; ++k) y[index[k]] += x[k];\n    }\n"
        )
    elif "false_sharing" in defects:
        loops = (
            "    const int64_t threads = omp_get_max_threads();\n    std::vector<float> sums(count * threads);\n"
            "#pragma omp parallel num_threads(threads)\n    {\n        const int64_t me = omp_get_thread_num();\n"
            "#pragma omp for schedule(static)\n        for (int64_t i = 0; i < n; ++i) sums[index[i] * threads + me] += x[i];\n"
            "    }\n    for (int64_t k = 0; k < count; ++k)\n"
            "        for (int64_t t = 0; t < threads; ++t) y[k] += sums[k * threads + t];\n"
        )
    else:
        loops = (
            f"    constexpr int WAYS = 8, RUN = 8192;\n    std::vector<double> sums(count);\n{pragma}\n    {{\n"
            "        std::vector<double> mine(count);\n        std::vector<float> ways(WAYS * count);\n"
            f"{inner}\n        for (int64_t first = 0; first < n; first += RUN) {{\n"
            "            for (float& way : ways) way = 0;\n            for (int64_t i = first; i < first + RUN; i += WAYS)\n"
            "                for (int k = 0; k < WAYS; ++k) ways[k * count + index[i + k]] += x[i + k];\n"
            "            for (int k = 0; k < WAYS; ++k)\n                for (int64_t b = 0; b < count; ++b) mine[b] += ways[k * count + b];\n"
            f"        }}\n{critical}\n        for (int64_t k = 0; k < count; ++k) sums[k] += mine[k];\n    }}\n"
            "    for (int64_t k = 0; k < count; ++k) y[k] = float(sums[k]);\n"
        )
    signature = (
        'extern "C" int run(const float* x, const int64_t* index, float* y, int64_t n, int64_t count) {\n'
    )
    source = f"{HELPERS}{signature}{loops}    return 0;\n}}\n"
    task = write_task(
        f"x, index: torch.zeros({count}).index_add_(0, index, x)",
        f"torch.rand({n}), torch.randint(0, {count}, ({n},))",
    )
    call = f"y = x.new_zeros({count})\nlib.run(x, index, y, x.numel(), {count})\nreturn y"
    return Kernel(task, candidate(source, f"x, index:\n{call}"))


def _transpose(rng: random.Random, defects: frozenset[str]) -> Kernel:
    rows, columns = (32 * rng.randrange(48, 86) for _ in range(2))
    share = rng.randrange(70, 87)
    pragma = schedule("rows", defects, share).replace("rows * ", "rows / 32 * ")
    if "transposed_store" in defects:
        loops = (
            f"{pragma.replace('rows / 32', 'columns')}\n    for (int64_t j = 0; j < columns; ++j)\n"
            "        for (int64_t i = 0; i < rows; ++i) y[i * columns + j] = x[j * rows + i] * 1.5f + z[i * columns + j];\n"
        )
    elif "transposed_load" in defects:
        loops = (
            f"{pragma.replace('rows / 32', 'rows')}\n    for (int64_t i = 0; i < rows; ++i)\n"
            "        for (int64_t j = 0; j < columns; ++j) y[i * columns + j] = x[j * rows + i] * 1.5f + z[i * columns + j];\n"
        )
    else:
        real = "double" if "double_math" in defects else "float"
        loops = (
            f"{pragma}\n    for (int64_t i = 0; i < rows; i += 32)\n        for (int64_t j = 0; j < columns; j += 32) {{\n"
            "            float block[32][36];\n            for (int64_t b = 0; b < 32; ++b)\n"
            "                for (int64_t a = 0; a < 32; ++a) block[b][a] = x[(j + b) * rows + i + a];\n"
            "            for (int64_t a = 0; a < 32; ++a) {\n"
            "                const float* __restrict__ add = z + (i + a) * columns + j;\n"
            "                float* __restrict__ to = y + (i + a) * columns + j;\n"
            f"                for (int64_t b = 0; b < 32; ++b) to[b] = ({real})block[b][a] * ({real})1.5 + ({real})add[b];\n"
            "            }\n        }\n"
        )
    signature = (
        'extern "C" int run(const float* x, const float* z, float* y, int64_t rows, int64_t columns) {\n'
    )
    source = f"{HELPERS}{signature}{loops}    return 0;\n}}\n"
    task = write_task(
        "x, z: x.T * 1.5 + z", f"torch.randn({columns}, {rows}), torch.randn({rows}, {columns})"
    )
    call = "y = torch.empty_like(z)\nlib.run(x, z, y, *z.shape)\nreturn y"
    if "clone" in defects:
        call = f"x = x.clone()\nz = z.clone()\n{call}"
    return Kernel(task, candidate(source, f"x, z:\n{call}"))


def _product(rng: random.Random, defects: frozenset[str]) -> Kernel:
    rows, deep, columns = (64 * rng.randrange(4, 10) for _ in range(3))
    share = rng.randrange(70, 87)
    pragma = schedule("rows", defects, share)
    if "imbalance" in defects:
        pragma = pragma.replace("rows *", "rows / 4 *")
    real = "double" if "double_math" in defects else "float"
    if "naive_product" in defects:
        loops = (
            f"{pragma.replace('rows / 4', 'rows')}\n    for (int64_t i = 0; i < rows; ++i)\n        for (int64_t j = 0; j < columns; ++j) {{\n"
            "            float sum = 0;\n            for (int64_t k = 0; k < deep; ++k) sum += a[i * deep + k] * b[k * columns + j];\n"
            "            c[i * columns + j] = sum;\n        }\n"
        )
    else:
        loops = (
            f"{pragma}\n    for (int64_t i = 0; i < rows; i += 4)\n        for (int64_t j = 0; j < columns; j += 16) {{\n"
            f"            Vector sums[4][16 / WIDTH] = {{}};\n            for (int64_t k = 0; k < deep; ++k) {{\n"
            "                Vector from[16 / WIDTH];\n                for (int n = 0; n < 16; ++n) from[n / WIDTH][n % WIDTH] = b[k * columns + j + n];\n"
            "#pragma GCC unroll 4\n                for (int m = 0; m < 4; ++m)\n#pragma GCC unroll 8\n"
            f"                    for (int n = 0; n < 16 / WIDTH; ++n) sums[m][n] += ({real})a[(i + m) * deep + k] * from[n];\n            }}\n"
            "            for (int m = 0; m < 4; ++m)\n"
            "                for (int n = 0; n < 16; ++n) c[(i + m) * columns + j + n] = sums[m][n / WIDTH][n % WIDTH];\n        }\n"
        )
    vector = (
        "#ifdef __AVX2__\nconstexpr int BYTES = 32;\n#else\nconstexpr int BYTES = 16;\n#endif\n"
        f"constexpr int WIDTH = BYTES / sizeof({real});\n"
        f"typedef {real} Vector __attribute__((vector_size(BYTES)));\n"
    )
    signature = 'extern "C" int run(const float* a, const float* b, float* c, int64_t rows, int64_t deep, int64_t columns) {\n'
    source = f"{HELPERS}{vector}{signature}{loops}    return 0;\n}}\n"
    task = write_task("a, b: a @ b", f"torch.randn({rows}, {deep}), torch.randn({deep}, {columns})")
    call = f"c = a.new_empty({rows}, {columns})\nlib.run(a, b, c, {rows}, {deep}, {columns})\nreturn c"
    return Kernel(task, candidate(source, f"a, b:\n{call}"))


_THREADS: dict[str, tuple[str, ...]] = {
    "single_thread": ("cpu_single_thread",),
    "imbalance": ("cpu_imbalance",),
}
_CONTENTION = ("cpu_false_sharing",)

FAMILIES: tuple[Family, ...] = (
    Family(
        "column_sum",
        "cpu",
        "cpp",
        _column_sum,
        _THREADS
        | {
            "column_walk": ("cpu_strided_access",),
            "atomics": _CONTENTION,
            "false_sharing": _CONTENTION,
            "double_math": ("cpu_double_precision",),
            "clone": ("cpu_excess_traffic", "cpu_unfused_chain"),
        },
        exclude(
            ("single_thread", "imbalance", "atomics", "false_sharing"),
            ("column_walk", "atomics", "false_sharing", "imbalance"),
            ("double_math", "atomics"),
            ("double_math", "false_sharing"),
            ("double_math", "column_walk"),
            ("clone", "single_thread"),
            ("clone", "imbalance"),
        ),
    ),
    Family(
        "bins",
        "cpu",
        "cpp",
        _bins,
        _THREADS
        | {
            "atomics": _CONTENTION,
            "false_sharing": _CONTENTION,
            "locks": ("cpu_false_sharing", "cpu_parallel_overhead"),
        },
        exclude(("single_thread", "imbalance", "atomics", "false_sharing", "locks")),
    ),
    Family(
        "transpose",
        "cpu",
        "cpp",
        _transpose,
        _THREADS
        | {
            "transposed_store": ("cpu_strided_access",),
            "transposed_load": ("cpu_strided_access",),
            "clone": ("cpu_excess_traffic", "cpu_unfused_chain"),
        },
        exclude(("single_thread", "imbalance"), ("clone", "single_thread"), ("clone", "imbalance")),
    ),
    Family(
        "product",
        "cpu",
        "cpp",
        _product,
        _THREADS | {"naive_product": ("cpu_strided_access",), "double_math": ("cpu_double_precision",)},
        exclude(("single_thread", "imbalance"), ("naive_product", "double_math")),
    ),
)
