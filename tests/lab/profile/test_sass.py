"""Kernels are really compiled (nvcc and Triton, for sm_90a; no GPU is needed) and their machine code read."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.languages.machine_code import gpu_images
from kernelpro.lab.profile import sass, sass_opcodes
from kernelpro.lab.profile.kernel_names import plain_name

needs_disassembler = pytest.mark.skipif(
    sass.find_tool("nvdisasm") is None or sass.find_tool("cuobjdump") is None,
    reason="nvdisasm or cuobjdump not found (Triton's wheel has both)",
)
needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="nvcc not found")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

KERNELS = r"""
#include <cuda_fp16.h>
#include <mma.h>
#include <cuda_pipeline.h>
using namespace nvcuda;
namespace space {
template <int N>
__global__ void scale(const float* __restrict__ x, float* y, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    #pragma unroll
    for (int k = 0; k < N; k++) if (i + k < n) y[i + k] = x[i + k] * 2.5f;
}
}
extern "C" __global__ void looped(const float4* x, float4* y, int n) {
    __shared__ float tile[256];
    float4 s = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < n; i += blockDim.x) {          // line 17
        float4 v = x[i];                                         // line 18
        s.x += v.x; s.y += v.y; s.z += v.z; s.w += v.w;
        tile[threadIdx.x] = v.x;
        __syncthreads();                                         // line 21
        s.x += tile[255 - threadIdx.x];
    }
    y[threadIdx.x] = s;
    atomicAdd(&y[0].x, s.x);
}
__global__ __launch_bounds__(1024, 2) void spilled(float* x, int n) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + 3) % 64] + x[i + r];
    for (int i = 0; i < 64; i++) x[i * n + threadIdx.x] = a[i];
}
static __global__ void doubled(float* x, int n) {
    for (int i = 0; i < n; i++) x[threadIdx.x] = x[threadIdx.x] * 0.3 + 1.1;
}
__global__ void product(half* a, half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> A;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> B;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> C;
    wmma::fill_fragment(C, 0.f);
    wmma::load_matrix_sync(A, a, 16);
    wmma::load_matrix_sync(B, b, 16);
    wmma::mma_sync(C, A, B, C);                                  // line 44
    wmma::store_matrix_sync(c, C, 16, wmma::mem_row_major);
}
__global__ void copied(float4* x, float4* y) {
    __shared__ float4 t[128];
    __pipeline_memcpy_async(&t[threadIdx.x], &x[threadIdx.x], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[threadIdx.x] = t[127 - threadIdx.x];
}
__global__ void narrow(const unsigned char* x, __half* y) { y[threadIdx.x] = __float2half(x[threadIdx.x]); }
__global__ void waits(float* x, int n) {
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    for (int i = 0; i < n; i++) {
        asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
            :: "r"(at), "r"(i & 1) : "memory");
        x[threadIdx.x] = x[threadIdx.x] * 2 + 1;
    }
}
__global__ void sine(float* x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }
template __global__ void space::scale<1>(const float*, float*, int);
template __global__ void space::scale<4>(const float*, float*, int);
extern "C" int launch(float* x, int n) { doubled<<<1, 32>>>(x, n); int unused; return 0; }
"""

WGMMA = r"""
#include <cstdint>
__device__ __noinline__ float called(float x) { asm volatile("" : "+f"(x)); return x * x + 1; }
extern "C" __global__ void gemm(const float* a, float* out, uint64_t da, uint64_t db, int n) {
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    #pragma unroll 1
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;");
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0; }"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(da + i), "l"(db));
        asm volatile("wgmma.commit_group.sync.aligned;");
        d0 = called(d0);  // a call while the product is under way
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    out[threadIdx.x] = d0 + d1 + d2 + d3;
}
"""

TRITON = """
import triton
import triton.language as tl

@triton.jit
def softmax(x, y, n, B: tl.constexpr):
    c = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + c, mask=c < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + tl.program_id(0) * n + c, v / tl.sum(v, 0), mask=c < n)

if __name__ == "__main__":
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    for warps in (4, 8):
        types = {"x": "*fp32", "y": "*fp32", "n": "i32", "B": "constexpr"}
        target = GPUTarget("cuda", 90, 32)
        triton.compile(ASTSource(softmax, types, {"B": 2048}), target=target, options={"num_warps": warps})
"""

LOOPS = """
#define KERNEL(name, statement)                                                                       \\
    extern "C" __global__ void name(volatile int* flag, volatile float* real, int* lock, int* table, int n) { \\
        __shared__ volatile int done;                                                                  \\
        int p = threadIdx.x;                                                                           \\
        if (p == 0) done = n;                                                                          \\
        __syncthreads();                                                                               \\
        statement                                                                                      \\
        table[threadIdx.x] = p;                                                                        \\
    }
__device__ int acquired(volatile int* flag) {
    int v;
    asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}
KERNEL(asks_flag, while (*flag == 0) {})
KERNEL(asks_shared, while (done == 0) {})
KERNEL(asks_two, while (flag[0] == 0 || flag[1] == 0) {})
KERNEL(asks_float, while (*real == 0.f) {})
KERNEL(asks_acquiring, while (!acquired(flag)) {})
KERNEL(asks_fenced, while (*flag == 0) __threadfence();)
KERNEL(asks_lock, while (atomicCAS(lock, 0, 1)) {})
KERNEL(asks_added, while (atomicAdd(lock, 0) == 0) {})
KERNEL(sleeps, while (*flag == 0) __nanosleep(100);)
KERNEL(chases, while (table[p] != p) p = table[p];)
KERNEL(searches, while (table[p]) ++p;)
KERNEL(searches_strong, while (flag[p]) ++p;)
KERNEL(counts, _Pragma("unroll 1") for (int k = 0; k < n; ++k) p += lock[k * n];)
"""
EXACT = """
extern "C" __global__ void divides(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] / y[threadIdx.x]; }
extern "C" __global__ void inverts(float* x, float* y) { y[threadIdx.x] = 1.0f / x[threadIdx.x]; }
extern "C" __global__ void root(float* x, float* y) { y[threadIdx.x] = sqrtf(x[threadIdx.x]); }
extern "C" __global__ void thirds(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] / 3.0f; }
extern "C" __global__ void quick(float* x, float* y) { y[threadIdx.x] = __fdividef(x[threadIdx.x], y[threadIdx.x]); }
extern "C" __global__ void whole(long long* x, long long* y) { y[threadIdx.x] /= x[threadIdx.x]; }
"""


def compiled(folder: Path, source: str, *flags: str) -> dict[str, bytes]:
    """What `nvcc -Xptxas -v` leaves: the library and what it said."""
    (folder / "kernel.cu").write_text(source)
    compiler = nvcc()
    assert compiler
    command = [
        compiler,
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-shared",
        "-Xcompiler",
        "-fPIC",
    ]
    command += ["-Xptxas", "-v", *flags, str(folder / "kernel.cu"), "-o", str(folder / "kernel.so")]
    done = subprocess.run(command, capture_output=True, check=True)
    return {"kernel.so": (folder / "kernel.so").read_bytes(), "kernel.log": done.stderr}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return compiled(tmp_path_factory.mktemp("cuda"), KERNELS)


@pytest.fixture(scope="module")
def static(files: dict[str, bytes]) -> sass.StaticAnalysis:
    return sass.analyze(files, KERNELS)


@needs_nvcc
@needs_disassembler
class TestCuda:
    def test_every_kernel_is_there_and_nothing_was_skipped(self, static: sass.StaticAnalysis) -> None:
        names = {"scale", "looped", "spilled", "doubled", "product", "copied", "narrow", "waits", "sine"}
        assert set(static.kernels) == names
        assert not static.skipped

    def test_widths_are_bits_per_thread(self, static: sass.StaticAnalysis) -> None:
        (looped,) = static.kernels["looped"]
        assert looped.widths["global_load"] == {"128": 1}
        assert looped.widths["shared_load"] == {"32": 1}
        (narrow,) = static.kernels["narrow"]
        assert narrow.widths == {"global_load": {"8": 1}, "global_store": {"16": 1}}
        assert narrow.mix["convert"] >= 1

    def test_a_loop_has_its_own_mix_and_line(self, static: sass.StaticAnalysis) -> None:
        (looped,) = static.kernels["looped"]
        (loop,) = looped.loops
        assert loop.innermost and loop.where == "kernel.cu:17"
        assert loop.mix["barrier"] == loop.mix["global_load"] == 1
        assert loop.mix["fma32"] == 5
        assert "atomic" not in loop.mix and looped.mix["atomic"] == 1
        assert loop.instructions == sum(loop.mix.values()) < looped.instructions == sum(looped.mix.values())
        assert looped.where["global_load"] == "kernel.cu:18"
        assert looped.where["barrier"] == "kernel.cu:21"

    def test_resources_are_those_of_the_compiler(
        self, static: sass.StaticAnalysis, files: dict[str, bytes]
    ) -> None:
        (looped,) = static.kernels["looped"]
        assert (looped.shared, looped.stack, looped.spill_stores) == (1024, 0, 0)
        without_log = sass.analyze({"kernel.so": files["kernel.so"]})
        for name, variants in static.kernels.items():
            for told, read in zip(variants, without_log.kernels[name], strict=True):
                assert (told.registers, told.stack, told.shared) == (read.registers, read.stack, read.shared)
                assert read.spill_stores is None

    def test_spills_are_counted_in_bytes_and_in_instructions(self, static: sass.StaticAnalysis) -> None:
        (spilled,) = static.kernels["spilled"]
        assert spilled.registers == 32
        assert spilled.spill_stores > 100 and spilled.spill_loads > 100 and spilled.stack > 100
        assert spilled.mix["local_load"] > 50 and spilled.mix["local_store"] > 50

    def test_double_precision_is_seen(self, static: sass.StaticAnalysis) -> None:
        (doubled,) = static.kernels["doubled"]
        hot = [loop for loop in doubled.loops if loop.innermost]
        assert hot and all(loop.mix["fp64"] >= 1 and loop.mix["convert"] >= 2 for loop in hot)
        assert "fp64" not in static.kernels["looped"][0].mix

    def test_tensor_cores_and_asynchronous_copies_are_seen_through_headers(
        self, static: sass.StaticAnalysis
    ) -> None:
        (product,) = static.kernels["product"]
        assert product.mix["hmma"] == 2
        assert product.where["hmma"] == "kernel.cu:44"
        (copied,) = static.kernels["copied"]
        assert copied.mix["async_copy"] == 1 and copied.widths["async_copy"] == {"128": 1}
        assert copied.mix["shared_load"] == 1, "loads that are never executed are not counted"
        assert "global_load" not in copied.mix

    def test_the_end_of_a_kernel_is_no_loop(self, static: sass.StaticAnalysis) -> None:
        assert all(not facts.loops for facts in static.kernels["scale"] + static.kernels["narrow"])

    def test_a_loop_that_waits_does_not_hide_the_one_around_it(self, static: sass.StaticAnalysis) -> None:
        (waits,) = static.kernels["waits"]
        assert waits.mix["mbarrier"] >= 1
        hot = [loop for loop in waits.loops if loop.innermost]
        assert hot and all(loop.mix["fma32"] >= 1 for loop in hot)

    def test_the_rare_path_of_sine_is_no_loop(self, static: sass.StaticAnalysis) -> None:
        (sine,) = static.kernels["sine"]
        assert not sine.loops and sine.mix["fma32"] > 5

    def test_warnings_without_a_kernel_stand_apart(self, static: sass.StaticAnalysis) -> None:
        assert any('"unused" was declared but never referenced' in text for text in static.warnings)
        assert all(text.startswith("kernel.cu(") for text in static.warnings)

    def test_definitions_are_found_in_the_source(self, static: sass.StaticAnalysis) -> None:
        assert static.kernels["looped"][0].anchor == "candidate.py:14"

    def test_match_finds_the_instance_of_a_template(self, static: sass.StaticAnalysis) -> None:
        one, four = sorted(static.kernels["scale"], key=lambda facts: facts.widths["global_load"]["32"])
        assert four.widths["global_load"] == {"32": 4}
        for facts, n in ((one, 1), (four, 4)):
            assert sass.find_variant(static, f"_ZN5space5scaleILi{n}EEEvPKfPfi", 0, 0, 0) is facts
            assert (
                sass.find_variant(static, f"void space::scale<{n}>(float const*, float*, int)", 0, 0, 0)
                is facts
            )
            assert (
                sass.find_variant(static, f"void scale<(int){n}>(const float *, float *, int)", 0, 0, 0)
                is facts
            )
            assert sass.find_variant(static, "scale", facts.registers, 128, 0) is facts
        assert sass.find_variant(static, "void at::native::other<4>(int)", 32, 128, 0) is None

    def test_packed_code_is_unpacked(self, tmp_path: Path, static: sass.StaticAnalysis) -> None:
        packed = compiled(tmp_path, KERNELS, "-Xfatbin", "-compress-all")
        assert b"LDGSTS" not in packed["kernel.so"] and not list(gpu_images(packed["kernel.so"]))
        assert sass.analyze(packed, KERNELS).kernels == static.kernels


@needs_nvcc
@needs_disassembler
def test_loops_that_ask_again_and_again_are_told_from_those_that_search_count_or_sleep(
    tmp_path: Path,
) -> None:
    static = sass.analyze(compiled(tmp_path, LOOPS))
    found = {name: [loop.asks for loop in facts[0].loops] for name, facts in static.kernels.items()}
    assert len(found) == 13 and all(found.values())
    assert {name for name, loops in found.items() if any(loops)} == {
        name for name in found if name.startswith("asks_")
    }


@needs_nvcc
@needs_disassembler
def test_a_slow_path_is_told_from_a_call(tmp_path: Path) -> None:
    static = sass.analyze(compiled(tmp_path, EXACT))
    found = {name: facts[0].mix for name, facts in static.kernels.items()}
    assert {name for name, mix in found.items() if mix.get("slow_path") == 1} == {
        "divides",
        "inverts",
        "root",
        "thirds",
    }
    assert {name for name, mix in found.items() if mix.get("call")} == {"whole"}


@needs_nvcc
@needs_disassembler
def test_serialised_wgmma_is_a_warning_of_its_kernel(tmp_path: Path) -> None:
    static = sass.analyze(compiled(tmp_path, WGMMA))
    (gemm,) = static.kernels["gemm"]
    assert any("wgmma.mma_async instructions are serialized" in text for text in gemm.warnings)
    assert not static.warnings
    (loop,) = gemm.loops
    assert loop.mix["hgmma"] == loop.mix["call"] == 1


@needs_triton
@needs_disassembler
class TestTriton:
    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("triton")
        (folder / "candidate.py").write_text(TRITON)
        environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")}
        subprocess.run([sys.executable, str(folder / "candidate.py")], check=True, env=environment)
        return {
            str(p.relative_to(folder)): p.read_bytes() for p in (folder / "cache").rglob("*") if p.is_file()
        }

    def test_variants_are_told_apart_by_their_launch(self, files: dict[str, bytes]) -> None:
        static = sass.analyze(files, TRITON)
        assert (
            set(static.kernels) == {"softmax"} and len(static.kernels["softmax"]) == 2 and not static.skipped
        )
        four = sass.find_variant(static, "softmax", 0, 128, 0)
        eight = sass.find_variant(static, "softmax", 0, 256, 0)
        assert (four.num_warps, eight.num_warps) == (4, 8)
        assert four.mix["special"] > eight.mix["special"], "half the threads, twice the exponentials each"
        assert four.registers > 0 and four.shared == 0 and four.dynamic_shared > 0
        assert four.anchor == "candidate.py:6"

    def test_lines_are_those_of_the_candidate(self, files: dict[str, bytes]) -> None:
        (first, _) = sass.analyze(files).kernels["softmax"]
        assert first.where["global_load"] == "candidate.py:8"
        assert first.where["global_store"] == "candidate.py:10"
        assert first.where["shuffle"] == "candidate.py:9", (
            "the reduction is Triton's, its call the candidate's"
        )


@needs_disassembler
def test_what_cannot_be_read_is_said() -> None:
    static = sass.analyze({"broken.cubin": b"\x7fELF nothing", "host.so": b"\x7fELF", "notes.txt": b""})
    assert not static.kernels
    (skipped,) = static.skipped
    assert (
        "broken.cubin" in skipped.what
        and "nvdisasm failed" in skipped.why
        and "nvidia-cuda-nvdisasm" in skipped.enable
    )


@needs_nvcc
def test_without_a_disassembler_the_compilers_report_remains(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda name: None)
    reported = sass.analyze(files, KERNELS)
    [facts] = reported.kernels["spilled"]
    assert facts.registers == 32 and facts.spill_stores > 0 and facts.spill_loads > 0 and facts.mix is None
    assert facts.anchor.startswith("candidate.py:") and facts.signature == "spilled(float*, int)"
    assert sass.find_variant(reported, "spilled(float*, int)", 32, 1024, 0) is facts
    assert [note.what for note in reported.skipped] == ["machine code"]


def test_without_tools_there_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Real lookups, pointed at places that are empty.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    if any(Path(place).exists() for place in ("/usr/local/cuda/bin/nvdisasm", "/opt/nvidia")):
        pytest.skip("this machine has a CUDA toolkit in its usual place")
    static = sass.analyze({"x.cubin": b""})
    assert [s.enable for s in static.skipped] == [
        "install nvidia-cuda-nvdisasm or the CUDA toolkit, of the compiler's version or newer"
    ]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("void foo<4, float>(const float*, int)", "foo"),
        ("_Z3fooILi4EfEvPKfi", "foo"),
        ("_ZN5outer5scaleILi4EfEEvPKT0_PS1_i", "scale"),
        ("_ZN12_GLOBAL__N_16kernelEv", "kernel"),
        ("_ZL7doubledPfi", "doubled"),
        ("void (anonymous namespace)::foo<true, 4u>()", "foo"),
        (
            "void cutlass::device_kernel<cutlass::gemm::GemmUniversal<int> >(cutlass::gemm::GemmUniversal<int>::Params)",
            "device_kernel",
        ),
        ("softmax_kernel(const float4 *, float4 *)", "softmax_kernel"),
        ("_attn_fwd", "_attn_fwd"),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("opcode", "operands", "kind", "width"),
    [
        ("HMMA.1688.F32.TF32", "R4, R12, R26, RZ", "hmma", None),
        ("HGMMA.64x128x16.F32.BF16", "R24, gdesc[UR8], R24", "hgmma", None),
        ("HGMMA.64x8x16.F16", "RZ, gdesc[URZ], RZ, !UPT, gsb0", "other", None),
        ("HFMA2.MMA", "R0, -RZ, RZ, 1.875, 0", "alu", None),
        ("HADD2.F32", "R5, -RZ, R4.H0_H0", "convert", None),
        ("FFMA2", "R4, R4.F32x2.HI_LO, R8.F32x2.HI_LO, R12", "fma32", None),
        ("UIADD3.X", "UR9, URZ, UR9, URZ", "alu", None),
        ("WARPGROUP.ARRIVE", "", "other", None),
        ("UTMALDG.2D", "[UR8], [UR4]", "tma", None),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "P0, [R2], R3", "mbarrier", None),
        ("LDSM.16.MT88.4", "R4, [R2]", "shared_load", 128),
        ("LDG.E.LTC128B.64.CONSTANT", "R4, [R2]", "global_load", 64),
        ("LDG.E.U8.CONSTANT", "R4, [R2]", "global_load", 8),
        ("LDCU.64", "UR4, c[0x0][0x358]", "constant", None),
        ("ATOMS.ADD", "RZ, [R2], R3", "shared_atomic", None),
    ],
)
def test_the_table_of_opcodes(opcode: str, operands: str, kind: str, width: int | None) -> None:
    assert sass_opcodes.kind(opcode, operands) == kind
    assert sass_opcodes.width(opcode, kind) == width
