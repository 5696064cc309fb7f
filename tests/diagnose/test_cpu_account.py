"""What the CPU account and the expected gains rest on: the time of loops, of the system, and what is reachable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelpro.diagnose import runner
from kernelpro.diagnose.account.cpu import (
    call_parts,
    coordination_share,
    effective_threads,
    native_libc_share,
    system_share,
)
from kernelpro.diagnose.account.loop_time import arithmetic_ms, with_outside_time, without_overlap
from kernelpro.diagnose.diagnostic import DiagnosticContext, Match
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, CpuLoop, CpuProfile, CpuRun, DeviceProperties, Profile
from kernelpro.records.cpu_profile import (
    CpuCode,
    CpuFunction,
    CpuSamples,
    CpuShares,
    FunctionShare,
    MachineLoop,
    Sweep,
    ThreadTime,
)
from kernelpro.records.profiling import Ceilings
from kernelpro.records.study import Work

OUTER = CpuLoop(file="k.so", function="run", begin=0, end=100, share=0.9)
RETRY = replace(OUTER, begin=40, end=60, share=0.6)


def profile(cpu: CpuProfile, time_ms: float = 10.0, floor_ms: float = 1.0) -> Profile:
    work = Work(read_bytes=1_000_000, written_bytes=1_000_000, matrix_flops=0.0, vector_flops=1e5)
    return Profile(
        target="cpu",
        time_ms=time_ms,
        floor_ms=floor_ms,
        work=work,
        ceilings=Ceilings(bandwidth=1e11, rates={"fp32": 1e11}, cached_bandwidth=1e11, cache_bytes=0),
        device=DeviceProperties(cores=2),
        precision="fp32",
        cpu=cpu,
    )


def test_unexplained_time_of_the_host_gets_advice_for_a_cpu() -> None:
    (finding,) = runner.diagnose(profile(CpuProfile(2, 256)), []).findings
    assert finding.claims == ("host",) and "Python" in finding.advice[0] and "CUDA" not in str(finding)


def test_a_loop_around_another_has_what_the_inner_one_leaves() -> None:
    assert [round(loop.share, 3) for loop in without_overlap((OUTER, RETRY))] == [0.6, 0.3]


def test_loops_that_share_a_part_of_their_code_do_not_count_it_twice() -> None:
    first, second = (
        replace(OUTER, begin=16, end=72, share=0.98),
        replace(OUTER, begin=32, end=124, share=0.99),
    )
    assert sum(loop.share for loop in without_overlap((first, second))) <= 1


def test_passes_that_call_the_same_function_share_its_time() -> None:
    loops = tuple(
        CpuLoop(function="run", begin=at, end=at + 10, share=0.1, where=f"k.cpp:{at}", calls={"f": 1})
        for at in (10, 30)
    )
    cpu = CpuProfile(
        2,
        128,
        sampled=True,
        shares=CpuShares(native=1.0),
        functions=(FunctionShare("run", 0.2), FunctionShare("f", 0.8)),
        loops=loops,
        sweeps=tuple(Sweep(loop.where, "run", loop.share) for loop in loops),
    )
    context = DiagnosticContext(profile(cpu), Bound.MEMORY)
    match = registry()["cpu_excess_traffic"].analyze(context)
    assert match and match.saved_share == pytest.approx(0.5)


def test_a_loop_has_the_time_of_the_functions_that_it_calls_and_of_its_code_elsewhere() -> None:
    calling = replace(OUTER, share=0.2, calls={"f": 1})
    split = CpuLoop(file="k.so", function="other", begin=200, end=220, share=0.2)
    cpu = CpuProfile(
        2,
        128,
        sampled=True,
        shares=CpuShares(native=1.0),
        functions=(FunctionShare("run", 0.2), FunctionShare("f", 0.5), FunctionShare("other", 0.3)),
        loops=(calling, split),
    )
    assert [round(loop.share, 3) for loop in with_outside_time(cpu)] == [0.7, 0.3]


def test_functions_behind_pointers_are_the_work_of_the_loop_that_calls_them() -> None:
    calling = replace(OUTER, share=0.3, calls={"?": 1})
    cpu = CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=1.0),
        static=CpuCode((CpuFunction(file="k.so", name="run", calls={"?": 1, "_Z4rarev": 1}),)),
        functions=(
            FunctionShare("_ZNK1A1fEfff", 0.5),
            FunctionShare("run", 0.3),
            FunctionShare("_Z4rarev", 0.1),
            FunctionShare("other._omp_fn.0", 0.1),
        ),
        loops=(calling,),
    )
    assert [round(loop.share, 3) for loop in with_outside_time(cpu)] == [0.8]
    match = registry()["cpu_scalar_code"].analyze(DiagnosticContext(profile(cpu), Bound.MEMORY))
    assert match and "through a pointer" in match.cause


def in_libc(calls: dict[str, int], native_ms: float = 9.9) -> CpuProfile:
    """Native code that spends 70 % of its time in the C library, and calls these functions in a loop."""
    loop = replace(OUTER, share=0.28, bits=256, calls=calls)
    return CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=0.28, libc=0.7, host=0.02),
        static=CpuCode((CpuFunction(file="k.so", name="run", calls=calls, loops=(loop,)),)),
        functions=(FunctionShare("run", 0.28),),
        loops=(loop,),
        sweeps=(Sweep("k.cpp:7", "run", 0.28),),
        dynamic=CpuRun(
            call_ms=10.0,
            native_ms=native_ms,
            native_calls=1.0,
            effective_threads=2.0,
            threads=(ThreadTime(7.0, 7.0), ThreadTime(7.0, 7.0)),
            samples=CpuSamples(count=100, threads={"1": {"work": 100}}),
        ),
    )


def test_the_c_library_belongs_to_the_native_code_that_calls_it() -> None:
    cpu = in_libc({"memcpy": 1})
    assert native_libc_share(cpu) == pytest.approx(0.7) and coordination_share(profile(cpu), cpu) == 0
    parts = call_parts(profile(cpu), cpu)
    assert parts["torch_operators"] == pytest.approx(0) and sum(parts.values()) == pytest.approx(10)
    match = registry()["cpu_excess_traffic"].analyze(DiagnosticContext(profile(cpu), Bound.MEMORY))
    assert match and match.saved_share == pytest.approx(0.72) and "fills of the C library" in match.cause
    assert native_libc_share(in_libc({"memcpy": 1}, native_ms=2.8)) == 0, "torch calls it, outside"
    alone = replace(
        cpu, dynamic=replace(cpu.dynamic, effective_threads=1.0, threads=(ThreadTime(10.0, 10.0),))
    )
    match = registry()["cpu_single_thread"].analyze(DiagnosticContext(profile(alone), Bound.MEMORY))
    assert match and match.saved_share == pytest.approx(0.49)


@pytest.mark.parametrize(
    ("name", "cause"), [("pthread_mutex_lock", "lock"), ("_ZNSt6thread15_M_start_threadE", "starts threads")]
)
def test_locks_and_new_threads_in_a_loop_are_parallel_overhead(name: str, cause: str) -> None:
    cpu = in_libc({name: 1})
    measured = profile(cpu)
    assert coordination_share(profile(cpu), cpu) == pytest.approx(0.7)
    assert call_parts(measured, cpu)["thread_coordination"] == pytest.approx(7.0)
    match = registry()["cpu_parallel_overhead"].analyze(DiagnosticContext(measured, Bound.MEMORY))
    assert match and cause in match.cause and match.saved_share > 0.5
    assert registry()["cpu_excess_traffic"].analyze(DiagnosticContext(measured, Bound.MEMORY)) is None


def test_code_that_a_division_keeps_out_of_the_loop_becomes_vector_code_too() -> None:
    mix = {"scalar_float": 4, "integer_division": 1, "load": 4, "store": 1, "branch": 3}
    loop = replace(OUTER, share=0.5, instructions=16, mix=mix)
    cpu = CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=1.0),
        static=CpuCode((CpuFunction(file="k.so", name="run", mix={"scalar_float": 20}),)),
        functions=(FunctionShare("run", 1.0),),
        loops=(loop,),
    )
    measured = profile(cpu)
    match = registry()["cpu_divisions"].analyze(DiagnosticContext(measured, Bound.MEMORY))
    assert match and match.saved_share == pytest.approx(0.5 * (1 - 15 / 75 / 8) + 0.5 * 7 / 8)
    measured = replace(measured, ceilings=replace(measured.ceilings, rates={"fp32": 1e10}))
    assert arithmetic_ms(measured, cpu) == pytest.approx(1e3 * 250_000 / 8 * 1.9 * 20 / (0.8 * 1e10 / 16))


def test_doubles_of_a_product_spill_registers_that_floats_do_not() -> None:
    mix = {"vector_float": 32, "double": 32, "convert": 12, "load": 17, "store": 9, "branch": 1}
    loop = replace(OUTER, share=1.0, instructions=73, mix=mix, bits=256, streamed=8)
    cpu = CpuProfile(2, 256, sampled=True, shares=CpuShares(native=1.0), loops=(loop,))
    match = registry()["cpu_double_precision"].analyze(DiagnosticContext(profile(cpu), Bound.COMPUTE))
    assert match and 1 / (1 - match.saved_share) == pytest.approx(2.86, abs=0.01)


@pytest.mark.parametrize(
    ("calls", "speedup"), [({"expf": 1}, 5.0), ({"pow": 1, "tanh": 1}, 21.25), ({"erff": 1}, 8.75)]
)
def test_costs_of_math_functions(calls: dict[str, int], speedup: float) -> None:
    loop = replace(OUTER, share=0.4, calls=calls, math=tuple(sorted(calls)))
    cpu = CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=0.4, libm=0.6),
        functions=(FunctionShare("run", 0.4),),
        loops=(loop,),
    )
    match = registry()["cpu_math_calls"].analyze(DiagnosticContext(profile(cpu), Bound.MEMORY))
    assert match and 1 / (1 - match.saved_share) == pytest.approx(speedup)


def test_additions_under_a_lock_wait_for_other_threads() -> None:
    loop = replace(
        OUTER, share=0.9, mix={"scalar_float": 17}, updates=1, carried=1, calls={"GOMP_critical_start": 1}
    )
    cpu = CpuProfile(2, 256, sampled=True, shares=CpuShares(native=1.0), loops=(loop,))
    assert registry()["cpu_dependency_chain"].analyze(DiagnosticContext(profile(cpu), Bound.MEMORY)) is None


@pytest.mark.parametrize(("faults", "share"), [(5.0, 0.0015), (1000.0, 0.3), (10_000.0, 0.6)])
def test_system_time_counts_as_far_as_page_faults_explain_it(faults: float, share: float) -> None:
    cpu = CpuProfile(2, 128, dynamic=CpuRun(cpu_ms=10.0, system_ms=6.0, minor_faults=faults))
    assert system_share(cpu) == pytest.approx(share)


def test_threads_with_a_dynamic_schedule_share_the_work() -> None:
    loop = MachineLoop(calls={"GOMP_loop_nonmonotonic_dynamic_next": 1})
    code = CpuCode((CpuFunction("k.so", "run._omp_fn.0", loops=(loop,)),))
    run = CpuRun(effective_threads=1.5)
    assert effective_threads(CpuProfile(2, 128, dynamic=run)) == 1.5
    assert effective_threads(CpuProfile(2, 128, static=code, dynamic=run)) == 2.0


def test_what_one_thread_alone_takes_bounds_the_imbalance() -> None:
    """Other work slows the first thread down: the second does 1.8 of 4 ms, so 2.2 are left for the first."""
    threads = (ThreadTime(cpu_ms=3.8, work_ms=3.3), ThreadTime(cpu_ms=2.5, work_ms=1.8))
    run = CpuRun(effective_threads=1.5, threads=threads, alone_ms=4.0, best_ms=4.1)
    assert effective_threads(CpuProfile(2, 128, dynamic=run)) == pytest.approx(4.0 / 2.2)


def test_passes_without_their_page_faults_remain() -> None:
    """Faults take 50 %: half of it in each of the two passes that write fresh memory."""
    sweeps = tuple(Sweep(f"kernel.cpp:{n}", "run", share) for n, share in ((3, 0.6), (5, 0.3), (7, 0.1)))
    run = CpuRun(cpu_ms=10.0, system_ms=5.0, minor_faults=1e6)
    cpu = CpuProfile(2, 128, sampled=True, sweeps=sweeps, dynamic=run, shares=CpuShares(native=1.0))
    match = registry()["cpu_excess_traffic"].analyze(
        DiagnosticContext(profile(cpu, floor_ms=0.1), Bound.MEMORY)
    )
    assert match and match.saved_share == pytest.approx(1 - 0.5 - 0.35)


def test_time_around_native_calls_bounds_their_overhead() -> None:
    """A fifth of the samples is in the interpreter, but only 0.17 ms of a call lie outside native code."""
    run = CpuRun(samples=CpuSamples(count=500), native_calls=1.0, call_ms=6.5, native_ms=6.33)
    cpu = CpuProfile(2, 128, sampled=True, dynamic=run, shares=CpuShares(native=0.75, host=0.25))
    analyze = registry()["cpu_call_overhead"].analyze
    assert analyze(DiagnosticContext(profile(cpu, time_ms=1.36), Bound.MEMORY)) is None
    several = replace(cpu, dynamic=replace(run, native_ms=4.0))
    assert analyze(DiagnosticContext(profile(several, time_ms=1.36), Bound.MEMORY))


def test_gains_end_where_good_kernels_do() -> None:
    """At a tenth of the floor's speed: five times, and ten times to the floor. Four million sums by index take
    two cores 2.8 of 10 ms."""
    scatter = replace(OUTER, indirect=1, updates=1)
    match = Match((), "cause", 0.97, "basis")
    for loop, limit in ((OUTER, 5.0), (scatter, 10 / 2.8)):
        measured = profile(CpuProfile(2, 128, loops=(loop,)))
        measured = replace(measured, work=replace(measured.work, read_bytes=48_000_000))
        context = DiagnosticContext(measured, Bound.MEMORY)
        assert context.gain(match).factor == pytest.approx(limit, abs=1e-3)
        assert "what good kernels reach" in context.gain(match).basis
        assert context.gain(replace(match, to_floor=True)).factor == pytest.approx(10.0)


@pytest.mark.parametrize(("bits", "lanes"), [(0, 8), (128, 8), (512, 16)])
def test_vectors_are_as_wide_as_compilers_make_them(bits: int, lanes: int) -> None:
    code = CpuCode((CpuFunction("k.so", "run", loops=(MachineLoop(bits=bits),)),))
    assert CpuProfile(2, 512, static=code).lanes == lanes


def test_a_thread_that_waits_in_a_parallel_region_is_imbalance_and_not_a_single_thread() -> None:
    threads = (ThreadTime(cpu_ms=2.0, work_ms=1.8), ThreadTime(cpu_ms=0.45, work_ms=0.07))
    run = CpuRun(effective_threads=1.04, threads=threads, alone_ms=2.1, best_ms=1.9)
    loop = replace(OUTER, parallel=True)
    waits = CpuProfile(2, 128, sampled=True, shares=CpuShares(native=0.9), loops=(loop,), dynamic=run)
    serial = replace(waits, loops=(OUTER,))
    for cpu, expected in ((waits, "cpu_imbalance"), (serial, "cpu_single_thread")):
        context = DiagnosticContext(profile(cpu), Bound.MEMORY)
        matches = [n for n in ("cpu_imbalance", "cpu_single_thread") if registry()[n].analyze(context)]
        assert matches == [expected]


def test_the_arithmetic_of_vector_loops_limits_what_other_remedies_reach() -> None:
    mix = {"vector_float": 10, "load": 3, "store": 1, "branch": 1}
    loop = CpuLoop(instructions=45, mix=mix, bits=128, share=0.9)  # 40 instructions, 62,500 times
    cpu = CpuProfile(2, 128, loops=(loop,), sampled=True, shares=CpuShares(native=1.0))
    slow = profile(cpu)
    slow = replace(slow, ceilings=replace(slow.ceilings, rates={"fp32": 1e10}))
    assert arithmetic_ms(slow, cpu) == pytest.approx(2.5)
    assert DiagnosticContext(slow, Bound.MEMORY).reachable_gain == pytest.approx(4.0)
    in_double = replace(cpu, loops=(replace(loop, mix=mix | {"double": 10}),))
    assert arithmetic_ms(slow, in_double) == 0


def test_lanes_that_are_added_one_after_the_other_are_a_dependency_chain() -> None:
    loop = CpuLoop(
        instructions=21, mix={"vector_float": 2, "scalar_float": 8, "load": 2}, bits=256, share=0.9
    )
    cpu = CpuProfile(2, 256, loops=(loop,), sampled=True, shares=CpuShares(native=1.0))
    context = DiagnosticContext(profile(cpu), Bound.MEMORY)
    match = registry()["cpu_dependency_chain"].analyze(context)
    assert match and match.saved_share == pytest.approx(0.9 * 7 / 8)
    wide = replace(loop, mix={"vector_float": 8, "load": 2})
    assert (
        registry()["cpu_dependency_chain"].analyze(
            DiagnosticContext(profile(replace(cpu, loops=(wide,))), Bound.MEMORY)
        )
        is None
    )


def test_data_that_stay_in_a_large_cache_come_from_there() -> None:
    ceilings = Ceilings(bandwidth=2e10, cached_bandwidth=7e10, cache_bytes=300 << 20, rates={"fp32": 1e11})
    assert ceilings.bandwidth_for(60e6) == 7e10 and ceilings.bandwidth_for(250e6) == 2e10
    assert replace(ceilings, cache_bytes=60 << 20).bandwidth_for(1e6) == 2e10
