"""What threads that coordinate cost on the CPU, and which time is left to a copy and to the code beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelpro.diagnose.account.cpu import (
    call_parts,
    coordination_share,
    sampled_scale,
    undisturbed_ms,
)
from kernelpro.diagnose.diagnostic import DiagnosticContext, Match
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, CpuLoop, CpuProfile, CpuRun, DeviceProperties, Profile
from kernelpro.records.cpu_profile import (
    CpuCode,
    CpuFunction,
    CpuSamples,
    CpuShares,
    FunctionShare,
    OperatorTime,
    Sweep,
    ThreadTime,
)
from kernelpro.records.profiling import Ceilings
from kernelpro.records.study import Work

LOCK, REGION, CHUNK = "pthread_mutex_lock", "GOMP_parallel", "GOMP_loop_dynamic_next"


def profile(cpu: CpuProfile, floor_ms: float = 0.1) -> Profile:
    return Profile(
        target="cpu",
        time_ms=10.0,
        floor_ms=floor_ms,
        work=Work(read_bytes=1_000_000, written_bytes=1_000_000, matrix_flops=0.0, vector_flops=1e5),
        ceilings=Ceilings(bandwidth=2e10, rates={"fp32": 1e11}, cached_bandwidth=2e10, cache_bytes=0),
        device=DeviceProperties(cores=2),
        precision="fp32",
        cpu=cpu,
    )


def coordinating(*calls: str, waits: int) -> CpuProfile:
    """Two threads spend `waits` percent of a call of 10 ms in the OpenMP runtime, which a scalar loop calls."""
    loop = CpuLoop(
        file="k.so",
        function="run._omp_fn.0",
        begin=0,
        end=100,
        share=1.0,
        calls=dict.fromkeys(calls, 1),
        mix={"scalar_float": 2},
        parallel=True,
    )
    states = {"work": 100 - waits, "host": 0, "wait": waits}
    return CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=1.0),
        static=CpuCode((CpuFunction(file="k.so", name=loop.function, loops=(loop,)),)),
        functions=(FunctionShare(loop.function, 1.0),),
        loops=(replace(loop, calls={}),),
        dynamic=CpuRun(
            call_ms=10.0,
            best_ms=10.0,
            native_ms=10.0,
            native_calls=1.0,
            effective_threads=2.0,
            alone_ms=4.0,
            threads=2 * (ThreadTime(10.0, 10.0 - waits / 10),),
            samples=CpuSamples(count=200, threads={"1": states, "2": states}),
        ),
    )


def find(name: str, cpu: CpuProfile) -> Match:
    match = registry()[name].analyze(DiagnosticContext(profile(cpu), Bound.MEMORY))
    assert match
    return match


def test_threads_that_coordinate_slow_each_others_work() -> None:
    """They spend 3 ms of 10 in the runtime; one thread alone needs 4 ms, which are 2 ms on two cores."""
    cpu = coordinating(REGION, waits=30)
    assert coordination_share(profile(cpu), cpu) == pytest.approx(0.8)
    assert call_parts(profile(cpu), cpu)["thread_coordination"] == pytest.approx(8.0)
    assert find("cpu_parallel_overhead", cpu).saved_share == pytest.approx(0.8)


def test_memory_that_the_cores_share_is_no_coordination() -> None:
    cpu = coordinating(REGION, waits=30)
    assert coordination_share(profile(cpu, floor_ms=6.0), cpu) == pytest.approx(0.4)
    rarely = coordinating(REGION, waits=5)
    assert coordination_share(profile(rarely), rarely) == pytest.approx(0.05)


@pytest.mark.parametrize(("call", "left_ms"), [(CHUNK, 4.0 * 0.6), (LOCK, 4.0 * 0.5)])
def test_chunks_and_free_locks_cost_one_thread_alone_too(call: str, left_ms: float) -> None:
    cpu = coordinating(call, waits=30)
    samples = CpuSamples(10, {"libc.so.6": 1, "k.so": 5}, {"1": {"work": 6, "host": 0, "wait": 4}})
    cpu = replace(cpu, dynamic=replace(cpu.dynamic, alone_samples=samples))
    assert undisturbed_ms(cpu) == pytest.approx(left_ms)
    assert find("cpu_parallel_overhead", cpu).saved_share == pytest.approx(1 - left_ms / 2 / 10)


def test_a_lock_that_is_free_is_not_blamed_on_other_threads() -> None:
    contended = coordinating(LOCK, waits=30)
    assert "the others wait" in find("cpu_parallel_overhead", contended).cause
    free = replace(contended, dynamic=replace(contended.dynamic, alone_ms=18.0))
    assert "no other thread holds it" in find("cpu_parallel_overhead", free).cause


def test_a_loop_saves_no_time_in_which_threads_coordinate() -> None:
    """Of 10 ms, 8 are coordination: eight floats at a time save 7/8 of the others."""
    assert find("cpu_scalar_code", coordinating(REGION, waits=30)).saved_share == pytest.approx(0.2 * 7 / 8)
    idle = coordinating(waits=30)
    assert find("cpu_scalar_code", idle).saved_share == pytest.approx(7 / 8), "threads wait at the end"


def test_one_native_call_wakes_the_threads_once() -> None:
    """Python makes a hundred calls: it takes 3 of the 10 ms, waking the threads 4."""
    cpu = coordinating(waits=0)
    samples = CpuSamples(count=200, threads={"1": {"work": 3, "host": 3, "wait": 4}, "2": {"work": 3}})
    run = replace(cpu.dynamic, native_calls=100.0, native_ms=5.0, samples=samples)
    cpu = replace(cpu, shares=CpuShares(native=0.5, host=0.5), dynamic=run)
    assert coordination_share(profile(cpu), cpu) == pytest.approx(0.4)
    assert find("cpu_call_overhead", cpu).saved_share == pytest.approx(1 - 0.5 * 0.6)
    long = replace(cpu, dynamic=replace(run, native_calls=2.0))
    assert coordination_share(profile(long), long) == 0, "threads wait for the last one of each call"


def copying(*operators: OperatorTime) -> CpuProfile:
    """torch takes 3 of 10 ms, a loop over its result 7; page faults for 20 MiB take 2 ms."""
    loop = CpuLoop(file="k.so", function="run", begin=0, end=100, share=0.7, bits=256)
    return CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=0.7, torch=0.3),
        functions=(FunctionShare("run", 0.7),),
        loops=(loop,),
        sweeps=(Sweep("k.cpp:3", "run", 0.7),),
        dynamic=CpuRun(
            call_ms=10.0,
            best_ms=10.0,
            cpu_ms=20.0,
            system_ms=4.0,
            minor_faults=5120.0,
            effective_threads=2.0,
            native_calls=1.0,
            native_ms=7.0,
            operators=operators,
        ),
    )


def test_page_faults_of_copies_are_no_time_of_the_loop_beside_them() -> None:
    cpu = copying(OperatorTime("_to_copy", 2, 3.0))
    parts = call_parts(profile(cpu, floor_ms=0.0), cpu)
    assert parts["torch_operators"] == pytest.approx(1.0) and parts["vector_code"] == pytest.approx(7.0)
    assert sampled_scale(profile(cpu), cpu) == pytest.approx(1.0)
    chain = copying(OperatorTime("_to_copy", 2, 1.5), OperatorTime("mul", 1, 1.5))
    assert sampled_scale(profile(chain), chain) == pytest.approx(0.8)


def test_a_copy_claims_nothing_of_the_loop_that_stays() -> None:
    match = find("cpu_excess_traffic", copying(OperatorTime("clone", 1, 3.0)))
    assert match.claims == ("torch_operators", "operating_system")
    assert match.saved_share == pytest.approx(0.3)


def test_copies_disappear_with_all_their_page_faults() -> None:
    """Two copies take 3 of 10 ms and all 2 ms of faults; of two operators that compute, one stays."""
    copies = find("cpu_unfused_chain", copying(OperatorTime("_to_copy", 2, 3.0)))
    assert copies.saved_share == pytest.approx(0.5) and copies.claims and "vector_code" not in copies.claims
    computes = find("cpu_unfused_chain", copying(OperatorTime("mul", 2, 3.0)))
    assert computes.saved_share == pytest.approx(0.3 - 0.15 * 0.8 + 0.1)


def columns(*updates: int) -> CpuProfile:
    """A pass for each number: so many arrays of sums does it update; 0: it stores results."""
    loops = tuple(
        CpuLoop(
            file="k.so",
            function=f"run._omp_fn.{index}",
            where=f"k.cpp:{10 + index}",
            share=1 / len(updates),
            mix={"vector_float": 2, "load": 4, "store": count or 1},
            updates=count,
            bits=256,
        )
        for index, count in enumerate(updates)
    )
    return CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=1.0),
        functions=tuple(FunctionShare(loop.function, loop.share) for loop in loops),
        loops=loops,
        sweeps=tuple(Sweep(loop.where, loop.function, loop.share) for loop in loops),
    )


@pytest.mark.parametrize(
    ("updates", "saved"),
    [((2, 0), 0.0), ((1, 1, 0), 1 / 3), ((0, 0), 0.5), ((0, 2), 0.5), ((1, 1), 0.5)],
)
def test_statistics_of_columns_need_a_pass_of_their_own(updates: tuple[int, ...], saved: float) -> None:
    """Mean and variance can share a pass; sums of what an earlier pass stored need none of their own."""
    assert find("cpu_excess_traffic", columns(*updates)).saved_share == pytest.approx(saved)
