"""Pieces of C++ kernels for the CPU that several families share."""

from __future__ import annotations

import random

HELPERS = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>
#include <omp.h>

constexpr int LANES = 16;

static inline float fast_exp(float x) {  // branch-free, so that loops with it vectorize
    x = x < -87.0f ? -87.0f : x;
    x = x > 80.0f ? 80.0f : x;  // v / (1 + exp(88)) is subnormal, which x86 computes a hundred times slower
    const float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return p * power;
}
"""

FLAGS = ("-fno-trapping-math", "-fno-math-errno")
"""Without them selects are branches."""
STATIC = "#pragma omp parallel for schedule(static)"
PARAMETERS = (
    "self.weight = nn.Parameter(torch.randn(sizes[0]))\nself.bias = nn.Parameter(torch.randn(sizes[0]))"
)
COPIES = ("cpu_excess_traffic", "cpu_unfused_chain")
"""The diagnostics that find a copy of an input."""


def candidate(source: str, forward: str, parameters: str = "", arguments: str = "*sizes") -> str:
    """A candidate with one C++ library; `forward` begins with its arguments: `x:\\n    ...`."""
    names, body = forward.split(":", 1)
    lines = "\n".join(f"        {line}" for line in body.strip("\n").splitlines())
    made = "\n".join(f"        {line}" for line in parameters.splitlines())
    return (
        "import torch\nimport torch.nn as nn\n\nfrom kernelpro import runtime\n\n"
        f'lib = runtime.cpp(r"""{source}""", {list(FLAGS)})\n\n\nclass ModelNew(nn.Module):\n'
        f"    def __init__(self, {arguments}):\n        super().__init__()\n{made}\n\n"
        f"    def forward(self, {names}):\n{lines}\n"
    )


def schedule(rows: str, defects: frozenset[str], share: int) -> str:
    """The OpenMP directive of the loop over rows, by the defects."""
    if "single_thread" in defects:
        return ""
    if "imbalance" in defects:
        return f"#pragma omp parallel for schedule(static, std::max<int64_t>(1, {rows} * {share} / 100))"
    return STATIC


def sizes(rng: random.Random, elements: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a matrix with about so many elements."""
    dim = 64 * rng.choice((4, 8, 12, 16, 24, 32, 48, 64))
    rows = rng.randrange(*elements) // dim
    return max(64, rows // 16 * 16), dim
