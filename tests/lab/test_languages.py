from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro import runtime
from kernelpro.lab.languages import cuda, detect, native, own_kernels
from kernelpro.lab.languages.machine_code import fingerprint, gpu_images
from kernelpro.records import Candidate, Status, Task


@pytest.fixture(autouse=True)
def private_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))


TWICE = r"""
#include <cstdint>
// extern "C" int in_a_comment(unknown x);
extern "C" void twice(const float* __restrict__ x, float* y, int64_t n) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];
}
extern "C" int fail(int code) { return code; }
extern "C" void scale(float* x, float by, bool really) { if (really) *x *= by; }
"""


def test_cpp_builds_and_calls() -> None:
    lib = runtime.cpp(TWICE)
    x, y = torch.randn(1000), torch.empty(1000)
    lib.twice(x, y, 1000)
    assert torch.equal(y, 2 * x)
    one = torch.ones(1)
    lib.scale(one, 2.5, True)
    assert one.item() == 2.5


def test_a_library_is_built_once(tmp_path: Path) -> None:
    first = runtime.cpp(TWICE).path
    stamp = first.stat().st_mtime_ns
    assert runtime.cpp(TWICE).path.stat().st_mtime_ns == stamp
    assert runtime.cpp(TWICE, flags=["-DX=1"]).path != first
    assert not [p for p in tmp_path.iterdir() if p.is_dir()], "scratch is left behind"


def test_calls_that_cannot_work_say_why() -> None:
    lib = runtime.cpp(TWICE)
    with pytest.raises(runtime.LaunchError, match=r"twice takes 3 arguments \(x, y, n\), got 1"):
        lib.twice(torch.ones(1))
    with pytest.raises(runtime.LaunchError, match="argument 1"):
        lib.fail("three")
    with pytest.raises(runtime.LaunchError, match="fail returned error code 3"):
        lib.fail(3)
    with pytest.raises(AttributeError, match="the library has twice, fail, scale"):
        _ = lib.thrice


def test_compiler_errors_carry_the_line() -> None:
    with pytest.raises(runtime.BuildError, match=r"kernel\.cpp:1:.*error"):
        runtime.cpp('extern "C" void f(int x) { y = 1; }')
    with pytest.raises(runtime.BuildError, match='no extern "C" function'):
        runtime.cpp("int f() { return 1; }")
    with pytest.raises(runtime.BuildError, match="cannot be passed"):
        runtime.cpp('struct S {}; extern "C" void f(S s) {}')


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(runtime.BuildError, match="install g"):
        runtime.cpp(TWICE)


def test_signatures_understand_cuda_parameters() -> None:
    found = native.signatures(
        'extern "C" cudaError_t go(const __half *x, unsigned long long n, std::size_t m, cudaStream_t s) {}'
    )
    kinds = [p.kind for p in found["go"].parameters]
    assert kinds == ["pointer", "unsigned long long", "size_t", "stream"]
    assert found["go"].returns_status


@pytest.mark.skipif(cuda.nvcc() is None, reason="no nvcc here")
def test_cuda_compiles_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    lib = runtime.cuda(
        "__global__ void k(float* x) { x[threadIdx.x] += 1; }\n"
        'extern "C" int go(float* x, cudaStream_t s) { k<<<1, 32, 0, s>>>(x); return cudaGetLastError(); }'
    )
    assert lib.path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("source", "language", "kernels"),
    [
        ('lib = runtime.cpp("""extern "C" void go(float* x) {}""")', "cpp", {"go"}),
        (
            "lib = runtime.cuda('''__global__ void __launch_bounds__(256) soft(float* x) {}''')",
            "cuda",
            {"soft"},
        ),
        ("lib = runtime.cute('template <int N> __global__ void tile(float* x) {}')", "cute", {"tile"}),
        (
            "import triton\n@triton.autotune(configs=[])\n@triton.jit\ndef add(x): pass\ndef plain(): pass",
            "triton",
            {"add"},
        ),
        (
            "import torch\nmodule = load_inline(cuda_sources='__global__ void relu_k(float* x) {}')",
            "torch",
            {"relu_k"},
        ),
        ("import torch\n# runtime.cuda( in a comment\n", "torch", set()),
        (
            'import torch\ncount = 7 // 2\nmodule = load_inline(cuda_sources=r"""\n'
            "__global__ __launch_bounds__(256, 4)  // at most 4 blocks\n/* of rows */ void norm_k(float* x) {}\n"
            '""")',
            "torch",
            {"norm_k"},
        ),
    ],
)
def test_languages_and_their_kernels_are_recognised(source: str, language: str, kernels: set[str]) -> None:
    assert detect(source).name == language
    assert own_kernels(source) == kernels


GO = """r'''extern "C" void go(float* x) {}'''"""
ADD = "def add(x): pass"


@pytest.mark.parametrize(
    ("source", "language", "kernels"),
    [
        (f"from kernelpro import runtime as rt\nlib = rt.cpp({GO})", "cpp", {"go"}),
        (f"import kernelpro.runtime as k\nlib = k.cpp({GO})", "cpp", {"go"}),
        (f"import kernelpro\nlib = kernelpro.runtime.cpp({GO})", "cpp", {"go"}),
        (f"from kernelpro.runtime import cpp\nlib = cpp({GO})", "cpp", {"go"}),
        (f"from kernelpro.runtime import cuda, cpp as c\nlib = c({GO})", "cpp", {"go"}),
        (f"import math\nfrom kernelpro.runtime import *\nlib = cpp({GO})", "cpp", {"go"}),
        (f"from kernelpro import runtime\nbuild = runtime.cpp\nlib = build({GO})", "cpp", {"go"}),
        ("from kernelpro.runtime import cuda as c\nlib = c('__global__ void k(float* x) {}')", "cuda", {"k"}),
        (f"import torch, triton\n@triton.jit\n{ADD}", "triton", {"add"}),
        (f"import triton as t\n@t.autotune(configs=[])\n@t.jit\n{ADD}", "triton", {"add"}),
        (f"from triton import jit\n@jit\n{ADD}", "triton", {"add"}),
        (f"from triton import jit as kernel\n@kernel(noinline=True)\n{ADD}", "triton", {"add"}),
        (f"from triton.experimental import gluon as g\n@g.jit\n{ADD}", "triton", {"add"}),
        (f"import triton\n{ADD}\nlaunch = triton.jit(add)", "triton", {"add"}),
        (f"import torch, triton\n@torch.jit.script\n{ADD}", "triton", set()),
        ('"""Not with runtime.cpp( nor\nimport triton"""\nimport torch', "torch", set()),
        (f"from kernelpro import runtime\nlib = runtime.cpp({GO}\n", "cpp", {"go"}),
    ],
)
def test_they_are_the_same_however_they_are_imported(source: str, language: str, kernels: set[str]) -> None:
    assert detect(source).name == language
    assert own_kernels(source) == kernels


def test_time_in_own_kernels_is_seen_under_another_name(quick_judge: QuickJudge) -> None:
    """The share of a C++ kernel on the CPU, and that one which does nothing is found out."""
    module = "import torch\n{0}\nclass {1}(torch.nn.Module):\n    def forward(self, x):\n        {2}\n"
    inputs = "def get_inputs(): return [torch.rand(512, 1024)]\ndef get_init_inputs(): return []\n"
    # eight of them: a native call that does nothing may take 20 us
    reference = "for _ in range(8): x = torch.tanh(x)\n        return x"
    task = Task(module.format(inputs, "Model", reference))
    native = r"""
    #include <cmath>
    extern "C" void go(const float* x, float* y, int n) {
        #pragma omp parallel for if (n > 1)
        for (int i = 0; i < n; i++) {
            y[i] = x[i];
            for (int k = 0; k < 8; k++) y[i] = tanhf(y[i]);
        }
    }"""
    own = f"from kernelpro import runtime as rt\nlib = rt.cpp(r'''{native}''')"
    does = "y = torch.empty_like(x); lib.go(x, y, x.numel()); return y"
    decoy = f"y = torch.empty(1); lib.go(x, y, 1)\n        {reference}"
    honest = quick_judge.judge(task, Candidate(module.format(own, "ModelNew", does)))
    assert honest.status is Status.PASSED and (honest.own_share or 0) > 0.5 and honest.language == "cpp"
    found = quick_judge.judge(task, Candidate(module.format(own, "ModelNew", decoy)))
    assert found.status is Status.CHEATING and "a decoy" in found.reason
    never = quick_judge.judge(task, Candidate(module.format(own, "ModelNew", reference)))
    assert never.status is Status.REFUSED and "never runs the kernels" in never.reason


CANDIDATE = """
from kernelpro import runtime
lib = runtime.{language}(r'''{native}''')
class ModelNew: {body}
"""


def built(language: str, native: str, body: str = "pass") -> str:
    """The fingerprint of a candidate around this code, which is compiled for real."""
    source = CANDIDATE.format(language=language, native=native, body=body)
    library = (runtime.cpp if language == "cpp" else runtime.cuda)(native).path
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(library, library.name)
    return fingerprint(source, packed.getvalue())


CALLS = r"""
#include <cmath>
__attribute__((section("elsewhere"), noinline)) static float twice(float x) { return 2.0f * x; }
extern "C" int inner(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = twice(CALLED(x[i])); return 0; }
"""

GRID = r"""
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" int launch(const float* x, float* y, cudaStream_t stream) {
    twice<<<1, 128, 0, stream>>>(x, y);
    return cudaGetLastError();
}
"""


@pytest.mark.parametrize("language", ["cpp", pytest.param("cuda", marks=pytest.mark.long)])
def test_the_same_instructions_are_the_same_candidate(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    if language == "cuda" and cuda.missing():
        pytest.skip(str(cuda.missing()))
    native = TWICE if language == "cpp" else GRID
    mark = built(language, native)
    assert mark
    assert built(language, "// said differently\n\n" + native) == mark
    if language == "cuda":  # nvcc takes seconds
        assert built(language, native.replace("128", "64")) != mark, "how it is launched counts"
    else:
        assert built(language, native.replace("2 * x", "3 * x")) != mark
        assert built(language, native, "slow = True") != mark
        calls = CALLS.replace("CALLED", "erff")
        assert built(language, calls) != built(language, calls.replace("erff", "tanhf")), (
            "what others do for it counts"
        )
        assert built(language, calls) != built(language, calls.replace("2.0f", "4.0f")), "wherever it lies"
        assert built(language, calls) != built(language, calls.replace("inner", "inner2")), (
            "what it offers counts"
        )


def test_a_library_that_is_full_of_beginnings_is_read_once() -> None:
    """Each of these could be the beginning of all that follows."""
    image = struct.pack("<4s14sH20xQ6x4H2x", b"\x7fELF", b"", 190, 1 << 40, 0, 0, 64, 1)
    assert len(image) == 64 and sum(map(len, gpu_images(b"-" + image * (1 << 16)))) <= 1 << 22


def test_without_a_build_nothing_is_known() -> None:
    assert fingerprint("class ModelNew: pass", b"") == ""


def test_what_is_nested_too_deeply_ends_nobody_but_itself(quick_judge: QuickJudge) -> None:
    """Python reads deeper nesting than it writes, and refuses what is deeper still with an error of its own."""
    sums = "+".join(["0.0"] * 900)
    module = "import torch\n{0}\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
    deep = f"def mark(value): return lambda f: f\n@mark({sums})\ndef kernel(): pass\n"
    assert own_kernels(module.format(f"import triton\n{deep}")) == set()
    inputs = "def get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n"
    task = Task(module.format(inputs).replace("ModelNew", "Model"))
    assert quick_judge.judge(task, Candidate(module.format(f"value = {sums}"))).status is Status.PASSED
    refused = quick_judge.judge(task, Candidate(module.format(f"value = {'(' * 500}1{')' * 500}")))
    assert refused.status is Status.BUILD_FAILED and refused.reason.startswith("syntax error")
