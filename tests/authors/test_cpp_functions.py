"""The vectorized functions of the playbook's C++: errors over all floats, special values, and vector code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from playbook_harness import KernelChecker, make_task, program_of

from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.cpp.functions import ACCURACY, FUNCTIONS, with_dependencies
from kernelpro.authors.playbook.cpp.moves import seeds
from kernelpro.authors.playbook.cpp.prelude import PRELUDE
from kernelpro.lab.languages.cpp import command

STRIDE = 2039
"""Every 2039th float: two million arguments of every exponent and sign, infinities and NaN."""
EXACT = {
    "exp": "std::exp(x)",
    "exp_below_0": "std::exp(x)",
    "exp2": "std::exp2(x)",
    "expm1": "std::expm1(x)",
    "log": "std::log(x)",
    "log1p": "std::log1p(x)",
    "tanh": "std::tanh(x)",
    "erf": "std::erf(x)",
    "sin": "std::sin(x)",
    "cos": "std::cos(x)",
    "gelu": "x == -INFINITY ? NAN : x / 2 * std::erfc(-x / std::sqrt(2.0))",
    "log1p_exp": "x > 30 ? x : std::log1p(std::exp(x))",
    "mish": "x > 30 ? x : x * std::tanh(std::log1p(std::exp(x)))",
}
"""The function in double."""
SKIPPED = {"exp_below_0": "x > 0", "sin": "std::fabs(x) >= 0x1p45 && std::fabs(x) < INFINITY"} | {
    "cos": "std::fabs(x) >= 0x1p45 && std::fabs(x) < INFINITY"
}
"""Arguments that the function does not cover."""
FLUSHED = {"exp": 1.7e-38, "exp_below_0": 1.2e-38, "exp2": 1.7e-38, "log1p_exp": 1.2e-38, "mish": 4e-36}
"""Results below may be 0."""
PROGRAM = """
#include <cstdio>
struct Errors { double worst = 0, at = 0, sum = 0; long count = 0, special = 0; double special_at = 0; };
static void compare(Errors& errors, double x, float y, double exact, double least, double flushed) {
    const float rounded = exact;
    if (exact != exact || std::isinf(rounded)) {
        const bool right = exact != exact ? y != y : y == rounded;
        if (!right) errors.special++, errors.special_at = x;
        return;
    }
    if (std::fabs(exact) < flushed && std::fabs(y) <= flushed) return;
    int exponent;
    std::frexp(std::fmax(std::fmax(std::fabs(exact), least), 1.17549435e-38), &exponent);
    const double ulp = std::fabs(y - exact) / std::ldexp(1.0, exponent - 24);
    if (!(ulp < 1e300)) errors.special++, errors.special_at = x;
    else if (ulp > errors.worst) errors.worst = ulp, errors.at = x;
    errors.sum += ulp, errors.count++;
}
static void print(const char* name, const Errors& e) {
    std::printf("{\\"name\\": \\"%s\\", \\"worst\\": %.4f, \\"at\\": \\"%.9g\\", \\"mean\\": %.4f, \\"special\\": %ld, "
                "\\"special_at\\": \\"%.9g\\"}\\n", name, e.worst, e.at, e.sum / e.count, e.special, e.special_at);
}
static float inputs[4096], outputs[4096];
"""
SCAN = """
static void scan_NAME() {
    Errors errors;
    for (uint64_t start = 0; start < 1ull << 32; start += 4096ull * STRIDE) {
        for (int i = 0; i < 4096; ++i) inputs[i] = float_of(uint32_t(start + i * STRIDE));
#pragma omp simd
        for (int i = 0; i < 4096; ++i) outputs[i] = fast_NAME(inputs[i]);
        for (int i = 0; i < 4096; ++i) {
            const double x = inputs[i];
            if (!(SKIPPED)) compare(errors, x, outputs[i], EXACT, LEAST, FLUSHED);
        }
    }
    print("fast_NAME", errors);
}
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The largest and mean errors in ulp, and the number of wrong special values, by function."""
    folder = tmp_path_factory.mktemp("functions")
    parts = [PRELUDE, *FUNCTIONS.values(), PROGRAM]
    for name, exact in EXACT.items():
        text = SCAN.replace("NAME", name).replace("EXACT", exact).replace("STRIDE", f"{STRIDE}ull")
        text = text.replace("SKIPPED", SKIPPED.get(name, "false")).replace(
            "FLUSHED", str(FLUSHED.get(name, 0))
        )
        parts.append(text.replace("LEAST", "std::fabs(x) / 2" if name == "gelu" else "0"))
    calls = " ".join(f"scan_{name}();" for name in EXACT)
    (folder / "scan.cpp").write_text("\n".join([*parts, f"int main() {{ {calls} }}"]))
    compiler = [flag for flag in command(["-fno-math-errno", "-fno-trapping-math"]) if flag != "-shared"]
    subprocess.run([*compiler, "scan.cpp", "-o", "scan"], cwd=folder, check=True, timeout=120)
    output = subprocess.run([folder / "scan"], capture_output=True, text=True, check=True, timeout=300)
    return {line["name"]: line for line in map(json.loads, output.stdout.splitlines())}


@pytest.mark.parametrize("name", ACCURACY)
def test_errors_stay_within_the_stated_bound(errors: dict[str, dict[str, float]], name: str) -> None:
    measured = errors[name]
    print(measured)
    assert measured["worst"] <= ACCURACY[name].ulp, measured
    assert not measured["special"], f"infinities or NaN differ: {measured}"


@pytest.mark.parametrize("name", ACCURACY)
def test_loops_vectorize(tmp_path: Path, name: str) -> None:
    loop = f"for (long i = 0; i < 1024; ++i) y[i] = {name}(x[i]);"
    lines = [
        PRELUDE,
        *with_dependencies({name}),
        'extern "C" void run(float* x, float* __restrict__ y) {',
    ]
    (tmp_path / "loop.cpp").write_text("\n".join([*lines, "#pragma omp simd", loop, "}"]))
    compiler = command(["-fno-math-errno", "-fno-trapping-math"])
    if "clang" in compiler[0]:
        pytest.skip("reads the report of g++")
    build = [*compiler, "-fopt-info-vec", "loop.cpp", "-o", "loop.so"]
    report = subprocess.run(
        build, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stderr
    assert "loop vectorized" in report


@pytest.mark.parametrize(
    ("forward", "function"),
    [
        ("F.gelu(a)", "fast_gelu(in_a"),
        ("0.5 * a * (1 + torch.erf(a / math.sqrt(2)))", "fast_gelu(in_a"),
        ("F.gelu(a) * b", "fast_gelu(in_a"),
        ("F.mish(a)", "fast_mish(in_a"),
        ("F.gelu(a, approximate='tanh')", "/ (fast_exp("),
        ("0.5 * a * (1 + torch.tanh(a * b))", "(2.0f / (fast_exp("),
        ("F.softplus(a)", "fast_log1p_exp("),
        ("torch.exp2(a)", "fast_exp2(in_a"),
        ("torch.softmax(a, -1)", "fast_exp_below_0("),
        ("torch.exp(a - b.amax(-1, keepdim=True))", "fast_exp("),
    ],
)
def test_formulas_with_a_function_of_their_own(forward: str, function: str) -> None:
    program = program_of(make_task(forward, "torch.randn(6, 40), torch.randn(6, 40)"))
    assert function in cpp.BACKEND.write(program, seeds(program)[1].design)


def test_kernels_match_the_reference(tmp_path: Path) -> None:
    task = make_task(
        "torch.pow(a.abs(), b), a.sin() + b.cos(), F.softplus(a), 0.5 * a * (1 + torch.tanh(a * b)), F.gelu(b, approximate='tanh')",
        "torch.randn(30, 70), torch.randn(30, 70)",
    )
    checker = KernelChecker(task, tmp_path)
    assert max(checker.errors(checker.designs()[1])) < 8


def test_only_functions_that_are_called_are_written() -> None:
    program = program_of(make_task("torch.tanh(a)"))
    source = cpp.BACKEND.write(program, seeds(program)[1].design)
    assert "fast_tanh" in source and "fast_exp" not in source
    assert "bits_of" in source
