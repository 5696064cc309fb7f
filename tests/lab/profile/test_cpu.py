"""The CPU's profile: real compiler, real objdump, real threads; x86-64 and clang by the text that their tools print."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelpro import runtime
from kernelpro.lab.languages.cpp import command
from kernelpro.lab.profile import cpu, cpu_code, cpu_operators, cpu_remarks
from kernelpro.lab.profile.cpu_shares import build_profile
from kernelpro.lab.profile.perf_counters import PerfCounters
from kernelpro.lab.profile.profiling_server import ProfilingServer
from kernelpro.records.cpu_profile import (
    CpuCode,
    CpuFunction,
    CpuLoop,
    CpuProfile,
    CpuRun,
    CpuSamples,
    MachineLoop,
    VectorizationRemark,
)

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" int scaled(const float* __restrict__ x, float* __restrict__ y, float by, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * by;
    return 0;
}
extern "C" int divided(const float* __restrict__ x, float* __restrict__ y, float by, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] / by;
    return 0;
}
extern "C" int summed(const float* x, float* y, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    *y = sum;
    return 0;
}
extern "C" int column(const float* x, float* y, int64_t rows, int64_t dim) {
    float sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += x[i * dim];
    *y = sum;
    return 0;
}
extern "C" int powers(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
    return 0;
}
extern "C" int doubled(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 0.1 + 0.3;
    return 0;
}
extern "C" int counted(const int64_t* index, double* bins, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
#pragma omp atomic
        bins[index[i]] += 1;
    }
    return 0;
}
extern "C" int gathered(const float* x, const int32_t* index, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[index[i]] * 2;
    return 0;
}
extern "C" int totalled(const float* x, volatile float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) *y = *y + x[i];
    return 0;
}
extern "C" int centered(const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += x[i];
        for (int64_t i = 0; i < n; ++i) y[i] = x[i] - sum / n;
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def profile() -> CpuProfile:
    library = runtime.cpp(SOURCE).path
    code, skipped = cpu.analyze({library.name: library.read_bytes()}, {"kernel.cpp": SOURCE})
    assert not skipped
    return build_profile(code, CpuRun(), {"kernel.cpp": SOURCE})


def loops(profile: CpuProfile, function: str) -> list[CpuLoop]:
    return [loop for loop in profile.loops if loop.function.split(".")[0] == function]


def test_vector_code_is_told_from_its_scalar_rest(profile: CpuProfile) -> None:
    vector = [loop for loop in loops(profile, "scaled") if loop.bits]
    assert vector and vector[0].bits >= 128 and vector[0].mix["vector_float"]
    assert all(loop.remainder for loop in loops(profile, "scaled") if not loop.bits)
    assert vector[0].where == "kernel.cpp:5" and vector[0].text.endswith("y[i] = x[i] * by;")


def test_each_fault_leaves_its_mark_in_the_loop(profile: CpuProfile) -> None:
    assert any(loop.fixed_divisors for loop in loops(profile, "divided"))
    assert not any(loop.fixed_divisors for loop in loops(profile, "scaled"))
    assert any(loop.chain and loop.accumulators == 1 for loop in loops(profile, "summed"))
    assert any(loop.strided for loop in loops(profile, "column"))
    assert not any(loop.strided for loop in loops(profile, "summed"))
    assert [loop.math for loop in loops(profile, "powers")] == [("expf",)]
    assert any(loop.mix.get("double") and loop.mix.get("convert") for loop in loops(profile, "doubled"))
    assert any(loop.mix.get("atomic") and loop.parallel for loop in loops(profile, "counted"))


def test_indices_from_memory_and_sums_in_memory_are_seen(profile: CpuProfile) -> None:
    assert any(loop.indirect for loop in loops(profile, "gathered"))
    assert any(loop.carried for loop in loops(profile, "totalled"))
    assert not any(loop.indirect or loop.carried for loop in loops(profile, "scaled"))


def test_loops_inside_one_loop_are_one_pass_over_the_data(profile: CpuProfile) -> None:
    inner = loops(profile, "centered")
    assert len(inner) >= 2 and len({loop.nest for loop in inner}) == 1
    assert sum(sweep.function == "centered" for sweep in profile.sweeps) == 1


def test_the_compiler_says_why_a_loop_is_scalar(profile: CpuProfile) -> None:
    assert "it calls expf (line 25)" in loops(profile, "powers")[0].reasons


def test_a_library_built_with_other_flags_keeps_its_facts_and_says_what_is_missing() -> None:
    library = runtime.cpp(SOURCE, flags=["-O1"]).path
    files = {library.name: library.read_bytes()}
    code, skipped = cpu.analyze(files, {"kernel.cpp": SOURCE})
    assert code.functions and not code.remarks and "with these flags" in skipped[0].why
    assert not cpu.analyze(files, {"kernel.cpp": SOURCE}, {"kernel.cpp": command(["-O1"])})[1]


def test_remarks_are_made_with_the_flags_that_the_candidate_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    source = 'extern "C" void scaled(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = x[i] * SCALE; }'
    runtime.cpp(source, flags=["-DSCALE=2", "-O2"])
    server = ProfilingServer([])
    answer, _ = server.disassemble({}, b"")
    code = CpuCode.from_json(answer["code"])
    assert not answer["skipped"] and any(loop.lines for f in code.functions for loop in f.loops)


def test_a_compiler_that_refuses_says_why_and_is_not_asked_to_be_installed() -> None:
    source = 'extern "C" void scaled(float* y) { y[0] = SCALE; }'
    _, (skipped,) = cpu.analyze({}, {"kernel.cpp": source})
    assert "kernel.cpp:1" in skipped.why and "SCALE" in skipped.why and not skipped.enable


def test_a_loop_that_is_called_from_a_loop_is_no_walk_over_the_data_of_its_own() -> None:
    def function(name: str, begin: int, calls: dict[str, int]) -> CpuFunction:
        loop = MachineLoop(begin, begin + 9, calls=calls)
        return CpuFunction("k.so", name, begin, begin + 20, loops=(loop,))

    names = [
        ("outer", 0, {"block": 1, "gates": 1}),
        ("block", 100, {}),
        ("gates", 200, {"finish": 1}),
        ("finish", 300, {}),
        ("apart", 400, {}),
    ]
    addresses = {str(begin + 5): 20 for _, begin, _ in names}
    samples = CpuSamples(100, {"k.so": 100}, addresses={"k.so": addresses})
    code = CpuCode(tuple(function(*arguments) for arguments in names))
    profile = build_profile(code, CpuRun(samples=samples))
    assert {sweep.function: sweep.share for sweep in profile.sweeps} == pytest.approx(
        {"outer": 0.8, "apart": 0.2}
    )
    assert [function.share for function in profile.functions] == [0.2] * 5


def test_what_the_machine_lacks_is_skipped_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown machine type" in cpu.analyze({"x.so": b"\x7fELF" + bytes(60)}, {})[1][0].why
    library = runtime.cpp(SOURCE).path
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    code, skipped = cpu.analyze({library.name: library.read_bytes()}, {"kernel.cpp": SOURCE})
    assert [note.enable for note in skipped] == ["install binutils", "install g++ or clang++"]
    assert build_profile(code, CpuRun()).loops == ()


WATCHED = r"""
import json, torch
from kernelpro import runtime
from kernelpro.lab.profile import cpu, cpu_shares
SOURCE = '''
#include <cstdint>
extern "C" int work(const float* x, float* y, int64_t n, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] / (1.0f + x[i] * x[i]);
    return 0;
}
'''
lib = runtime.cpp(SOURCE)
x = torch.randn(1 << 20)
y = torch.empty_like(x)
result = {}
for threads in (1, 2):
    run, _ = cpu.observe_calls(lambda: lib.work(x, y, x.numel(), threads), 0.5)
    code, _ = cpu.analyze({lib.path.name: lib.path.read_bytes()}, {'kernel.cpp': SOURCE})
    result[threads] = cpu_shares.build_profile(code, run, {'kernel.cpp': SOURCE}).to_json()
print(json.dumps(result))
"""


@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_threads_and_the_hot_line_are_seen() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True)
    one, two = (CpuProfile.from_json(data) for data in json.loads(done.stdout).values())
    assert one.dynamic.effective_threads and two.dynamic.effective_threads
    assert one.dynamic.effective_threads < 1.2 < 1.4 < two.dynamic.effective_threads
    for profile in (one, two):
        assert profile.sampled and profile.shares.native > 0.5
        assert profile.loops[0].where == "kernel.cpp:5" and profile.loops[0].share > 0.5
        run = profile.dynamic
        assert run.native_ms and run.call_ms and run.best_ms
        assert run.native_calls == 1 and run.native_ms <= run.call_ms
        assert run.calls > 3 and run.call_ms >= run.best_ms > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_thread_alone_spends_time_on_free_locks() -> None:
    lib = runtime.cpp(
        """#include <cstdint>
extern "C" int sum(const float* x, float* y, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
#pragma omp critical
        y[0] += x[i];
    }
    return 0;
}"""
    )
    x, y = torch.ones(1 << 16), torch.zeros(1)
    run, _ = cpu.observe_calls(lambda: lib.sum(x, y, len(x)), 0.2)
    assert run.alone_ms and run.alone_samples and not run.alone_samples.addresses
    (states,) = run.alone_samples.threads.values()
    assert states["wait"] > 0.1 * sum(states.values()), "in the OpenMP runtime"


def test_fresh_memory_shows_as_page_faults() -> None:
    size = 32 << 20

    def call() -> None:
        with mmap.mmap(-1, size) as fresh:
            for page in range(0, size, mmap.PAGESIZE):
                fresh[page] = 1

    run, _ = cpu.observe_calls(call, 0.2)
    assert run.minor_faults and run.minor_faults >= size >> 21  # at least one for each huge page of 2 MiB
    assert run.system_ms and run.system_ms > 0


def test_counters_count_or_say_how_to_enable_them() -> None:
    counters = PerfCounters()
    with counters.running():
        sum(range(10000))
    if counters.values:
        assert counters.values["instructions"] > 10000
    else:
        assert counters.skipped and counters.skipped.why and counters.skipped.enable


X86 = """
0000000000001100 <kernel._omp_fn.0>:
kernel._omp_fn.0():
/src/kernel.cpp:7
    1100:\tvmovups ymm0,YMMWORD PTR [rdi+rax*1]
    1105:\tvfmadd231ps ymm1,ymm0,YMMWORD PTR [rsi+rax*1]
    110b:\tvdivps ymm2,ymm1,ymm5
    1110:\tvmovups YMMWORD PTR [rdx+rax*1],ymm2
    1115:\tadd    rax,0x20
    1119:\tcmp    rax,rcx
    111c:\tjne    1100 <kernel._omp_fn.0>
/src/kernel.cpp:9 (discriminator 3)
    1120:\tvmovss xmm3,DWORD PTR [r8]
    1125:\tvaddss xmm4,xmm4,xmm3
    1129:\tadd    r8,r9
    112c:\tcmp    r8,r10
    112f:\tjne    1120 <kernel._omp_fn.0+0x20>
/src/kernel.cpp:11
    1140:\tvcvtss2sd xmm0,xmm0,DWORD PTR [rdi]
    1145:\tvmulsd xmm0,xmm0,xmm6
    1149:\tlock cmpxchg QWORD PTR [rsi],rdx
    1150:\tcall   1030 <expf@plt>
    1155:\tadd    rdi,0x4
    1159:\tjne    1140 <kernel._omp_fn.0+0x40>
    1160:\tret
"""


def test_x86_code_is_read_like_arm() -> None:
    code = cpu_code.parse(X86, arm=False)
    function = cpu_code.analyze_function("kernel.so", "kernel._omp_fn.0", code["kernel._omp_fn.0"])
    vector, column, doubles = function.loops
    assert vector.bits == 256 and vector.fixed_divisors == 1 and not vector.strided and vector.streamed == 3
    assert vector.mix == {"vector_float": 2, "fma": 1, "division": 1, "load": 2, "store": 1, "branch": 1}
    assert (
        column.strided == 1 and column.strided_bytes == 4 and column.chain == 1 and column.accumulators == 1
    )
    assert doubles.mix["double"] == doubles.mix["convert"] == doubles.mix["atomic"] == 1
    assert doubles.calls == {"expf": 1}
    assert list(column.lines) == ["kernel.cpp:9"]


def test_single_lanes_are_stored_and_loaded_on_x86() -> None:
    text = """
0000000000000100 <f>:
 100:\tvmovups xmm0,XMMWORD PTR [rdi]
 104:\tvmovss DWORD PTR [rdx],xmm0
 108:\tvextractps DWORD PTR [rdx+rcx*1],xmm0,0x1
 10e:\tvinsertps xmm1,xmm1,DWORD PTR [rsi+rcx*1],0x10
 114:\tadd    rdx,r8
 117:\tadd    rsi,r8
 11a:\tadd    rdi,0x10
 11e:\tcmp    rdi,r9
 121:\tjne    100 <f>
"""
    loop = cpu_code.analyze_function("kernel.so", "f", cpu_code.parse(text, arm=False)["f"]).loops[0]
    assert (loop.strided, loop.strided_stores, loop.streamed) == (3, 2, 1)
    assert loop.mix["store"] == 2 and loop.mix["load"] == 2


def test_blocks_out_of_line_are_not_loops() -> None:
    text = """
0000000000000100 <f>:
 100:\tcmp\tx0, x1
 104:\tb.lt\t120 <f+0x20>
 108:\tldr\ts0, [x2]
 10c:\tadd\tx2, x2, #0x4
 110:\tcmp\tx2, x3
 114:\tb.ne\t108 <f+0x8>  // b.any
 118:\tret
 120:\tadd\tx0, x0, #0x1
 124:\tb\t108 <f+0x8>
"""
    result = cpu_code.find_loops(cpu_code.parse(text, arm=True)["f"])
    assert [(body[0].address, body[-1].address) for body, _ in result] == [(0x108, 0x114)]


def test_an_outer_loop_that_jumps_right_into_its_inner_one_does_not_hide_it() -> None:
    text = """
0000000000000100 <f>:
 100:\tvcvtss2sd xmm0,xmm2,DWORD PTR [rdx]
 104:\tadd    rdx,0x4
 108:\tvfmadd231sd xmm1,xmm0,xmm0
 10c:\tcmp    rdx,r12
 110:\tjne    100 <f>
 114:\tvmovsd QWORD PTR [rdi],xmm1
 118:\tadd    r12,rsi
 11c:\tcmp    rax,r15
 120:\tjg     100 <f>
"""
    inner, outer = cpu_code.analyze_function("k.so", "f", cpu_code.parse(text, arm=False)["f"]).loops
    assert (inner.begin, inner.end, inner.innermost, inner.chain) == (0x100, 0x110, True, 1)
    assert (outer.begin, outer.end, outer.innermost) == (0x100, 0x120, False)


def test_two_ends_of_a_loop_and_no_code_between_them_belong_to_it() -> None:
    text = """
0000000000000100 <f>:
 100:\tvmovss xmm0,DWORD PTR [rsi+rax*4]
 104:\tjbe    130 <f+0x30>
 108:\tvmovss DWORD PTR [rcx+rax*4],xmm0
 10c:\tinc    rax
 110:\tjne    100 <f>
 114:\tadd    rcx,r10
 118:\tcall   200 <GOMP_critical_start@plt>
 11c:\tret
 130:\tmov    DWORD PTR [rcx+rax*4],0x0
 134:\tinc    rax
 138:\tjne    100 <f>
"""
    (loop,) = cpu_code.analyze_function("k.so", "f", cpu_code.parse(text, arm=False)["f"]).loops
    assert (loop.begin, loop.end, loop.instructions) == (0x100, 0x138, 8)
    assert not loop.calls and not loop.strided


def test_remarks_of_clang_are_understood() -> None:
    text = """kernel.cpp:5:5: remark: loop not vectorized: cannot prove it is safe to reorder floating-point operations; \
allow reordering by specifying '#pragma clang loop vectorize(enable)' [-Rpass-analysis=loop-vectorize]
kernel.cpp:5:5: remark: loop not vectorized [-Rpass-missed=loop-vectorize]
kernel.cpp:9:12: remark: loop not vectorized: call instruction cannot be vectorized [-Rpass-analysis=loop-vectorize]
"""
    result = cpu_remarks.parse(text, "kernel.cpp")
    assert result == [
        VectorizationRemark("kernel.cpp", 5, "the order of a floating-point sum must be kept"),
        VectorizationRemark("kernel.cpp", 9, "it calls a function"),
    ]


@pytest.mark.alone
def test_operators_of_torch_are_counted_and_timed_but_not_what_calling_them_costs() -> None:
    tall, wide, small = torch.randn(4096, 64), torch.randn(64, 1024), torch.randn(4)
    operators = {
        operator.name: operator
        for operator in cpu_operators.measure_operators(
            lambda: ((tall @ wide).tanh_().t(), small * 2, small * 3)
        )
    }
    assert set(operators) == {"mm", "tanh_", "mul"} and operators["mul"].count == 2, "views are no work"
    assert operators["mul"].ms < 0.1 * operators["tanh_"].ms
    assert cpu_operators.measure_operators(lambda: None) == ()
