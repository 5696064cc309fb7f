"""System-level diagnostics over timelines of one call, of either source."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from typed_records import typed

from kernelpro.diagnose import DiagnosticContext, MissingData
from kernelpro.diagnose.diagnostic import ANY
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, Copy, Finding, Kernel, Profile, Severity, Timeline

DIAGNOSTICS = registry()
NAMES = [
    "launch_overhead",
    "host_sync",
    "host_gaps",
    "needless_copies",
    "unfused_chain",
    "hot_spot",
    "power_bound",
]
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
UNARY = "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(at::TensorIteratorBase&)>"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda> >"
COOL = {"watts": 400.0, "limit_watts": 700.0, "sm_mhz": 1980.0, "max_sm_mhz": 1980.0, "capped": 0.0}

Source = Literal["nsys", "cupti"]


def context(
    kernels: list[tuple[str, float, float]],
    call_us: float,
    *,
    gaps_us: float = 0.0,
    source: Source = "cupti",
    **changes: Any,
) -> DiagnosticContext:
    """A call with these kernels (name, microseconds in all, launches); the device is busy with them and with the copies."""
    total = sum(us for _, us, _ in kernels) or 1.0
    copies = tuple(changes.pop("copies", ()))
    found = tuple(
        Kernel(name, us, launches, us / total, authored=not name.startswith("void at::"))
        for name, us, launches in sorted(kernels, key=lambda k: -k[1])
    )
    busy = sum(us for _, us, _ in kernels) + sum(copy.microseconds for copy in copies)
    calls = {"syncs": changes.pop("syncs", {}), "apis": changes.pop("apis", {})}
    line = Timeline(
        source, 5, call_us, busy, gaps_us, sum(launches for *_, launches in kernels), copies, **calls
    )
    nbytes = changes.pop("nbytes", 0.0)
    fields: dict[str, Any] = {
        "time_ms": call_us / 1e3,
        "floor_ms": nbytes / 4.3e9,
        "work": {"read_bytes": nbytes / 2, "written_bytes": nbytes / 2},
        "ceilings": {"bandwidth": 4.3e12, "rates": {"fp32": 51e12}},
        "device": {"name": "NVIDIA H200", "sms": 132, "dram_bandwidth": 4.3e12},
        "precision": "tf32",
        "power": COOL,
    }
    profile = Profile("cuda", **typed(fields | changes), kernels=found, timeline=line)
    return DiagnosticContext(profile, Bound.MEMORY)


def analyze(name: str, at: DiagnosticContext) -> Finding | None:
    match = DIAGNOSTICS[name].analyze(at)
    return at.to_finding(DIAGNOSTICS[name], match) if match else None


def ranked(at: DiagnosticContext) -> list[Finding]:
    """All findings of the system diagnostics, largest gain first, symptoms last."""
    found = [finding for name in NAMES if (finding := analyze(name, at))]
    names = {finding.diagnostic for finding in found}
    return sorted(
        found,
        key=lambda finding: (
            bool(names & set(DIAGNOSTICS[finding.diagnostic].symptom_of)),
            -finding.gain.factor,
        ),
    )


CASES = {
    "launch_overhead": {"kernels": [("step", 300.0, 200)], "call_us": 2000.0, "gaps_us": 1600.0},
    "host_sync": {
        "kernels": [("a", 60.0, 3), ("b", 60.0, 3)],
        "call_us": 400.0,
        "gaps_us": 220.0,
        "syncs": {"cudaStreamSynchronize": 5.0},
        "copies": [Copy("DtoH", 5, 20, 8.0)],
    },
    "host_gaps": {"kernels": [("a", 100.0, 2), ("b", 100.0, 2)], "call_us": 1300.0, "gaps_us": 1050.0},
    "needless_copies": {"kernels": [(COPY, 180.0, 2), ("work", 120.0, 1)], "call_us": 340.0, "nbytes": 4e8},
    "unfused_chain": {
        "kernels": [(ELEMENTWISE, 240.0, 2), (UNARY, 120.0, 1), (REDUCE, 65.0, 1)],
        "call_us": 460.0,
        "nbytes": 512e6,
    },
    "hot_spot": {
        "kernels": [("big", 400.0, 1), ("small", 60.0, 1), ("tiny", 40.0, 1)],
        "call_us": 540.0,
        "nbytes": 4e8,
    },
    "power_bound": {
        "kernels": [("gemm", 900.0, 1)],
        "call_us": 930.0,
        "power": {
            "watts": 695.0,
            "limit_watts": 700.0,
            "sm_mhz": 1450.0,
            "max_sm_mhz": 1980.0,
            "capped": 0.9,
        },
    },
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("source", ["nsys", "cupti"])
def test_each_defect_is_the_first_finding_whatever_traced_it(name: str, source: Source) -> None:
    findings = ranked(context(**CASES[name], source=source))
    assert findings and findings[0].diagnostic == name
    assert findings[0].advice and findings[0].evidence and findings[0].gain.basis
    assert findings == ranked(context(**CASES[name]))


@pytest.mark.parametrize(
    "name", ["launch_overhead", "host_sync", "host_gaps", "needless_copies", "unfused_chain"]
)
def test_what_costs_a_quarter_of_a_call_is_severe(name: str) -> None:
    found = analyze(name, context(**CASES[name]))
    assert found and found.severity is Severity.HIGH


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "healthy",
    [
        {"kernels": [("softmax", 130.0, 1)], "call_us": 160.0, "nbytes": 5.1e8},
        {
            "kernels": [("norm", 70.0, 1), ("project", 130.0, 1)],
            "call_us": 235.0,
            "gaps_us": 2.0,
            "nbytes": 7.4e8,
        },
        {"kernels": [("tiny", 4.0, 1)], "call_us": 25.0, "nbytes": 1e6},
        {
            "kernels": [("graph", 200.0, 1)],
            "call_us": 230.0,
            "gaps_us": 12.0,
            "copies": [Copy("memset", 1, 4, 1.0)],
            "nbytes": 8e8,
        },
    ],
    ids=["one kernel", "two kernels", "one short kernel", "a graph"],
)
def test_healthy_calls_are_left_alone(name: str, healthy: dict[str, Any]) -> None:
    assert analyze(name, context(**healthy)) is None


@pytest.mark.parametrize("name", NAMES)
def test_without_a_timeline_a_diagnostic_is_skipped(name: str) -> None:
    at = context(**CASES[name])
    bare = Profile.from_json(at.profile.to_json() | {"timeline": None, "power": {}})
    with pytest.raises(MissingData, match=r"timeline|power"):
        DIAGNOSTICS[name].analyze(DiagnosticContext(bare, Bound.MEMORY))


def test_launches_that_the_device_hides_cost_nothing() -> None:
    assert analyze("launch_overhead", context([("step", 1500.0, 200)], 1600.0, gaps_us=60.0)) is None


def test_a_tracer_that_makes_launches_slow_does_not_make_them_something_else() -> None:
    slow_host: dict[str, Any] = {"kernels": [("step", 520.0, 256)], "time_ms": 6.0}
    quick = ranked(context(**slow_host, call_us=7000.0, gaps_us=6400.0))
    traced = ranked(context(**slow_host, call_us=11000.0, gaps_us=10400.0, source="nsys"))
    assert quick[0].diagnostic == traced[0].diagnostic == "launch_overhead"


def test_the_gain_of_fewer_launches_keeps_the_busy_time() -> None:
    found = analyze("launch_overhead", context(**CASES["launch_overhead"]))
    assert found and found.gain.factor == pytest.approx(2000 / 310, rel=0.01)


def test_a_scalar_read_back_is_a_synchronisation_and_a_tensor_a_copy() -> None:
    scalar = context(
        [("a", 100.0, 2)],
        200.0,
        gaps_us=60.0,
        syncs={"cudaStreamSynchronize": 1.0},
        copies=[Copy("DtoH", 1, 4, 2.0)],
    )
    assert [finding.diagnostic for finding in ranked(scalar)] == ["host_sync", "host_gaps"]
    assert analyze("needless_copies", scalar) is None
    trip = [Copy("DtoH", 1, 64e6, 2500.0), Copy("HtoD", 1, 64e6, 2600.0)]
    tensor = context(
        [("a", 100.0, 2)], 6000.0, gaps_us=700.0, syncs={"cudaStreamSynchronize": 2.0}, copies=trip
    )
    found = ranked(tensor)
    assert (
        found[0].diagnostic == "needless_copies"
        and ".cpu()" in found[0].advice[0]
        and found[0].gain.factor > 10
    )
    assert analyze("host_sync", tensor) is None


def test_a_synchronisation_at_the_end_costs_little() -> None:
    found = analyze("host_sync", context([("a", 900.0, 1)], 960.0, syncs={"cudaDeviceSynchronize": 1.0}))
    assert found and found.severity is Severity.LOW


def test_allocations_are_named_as_the_cause_of_gaps() -> None:
    apis = {"cudaMalloc": {"count": 4.0, "us": 800.0}, "cudaLaunchKernel": {"count": 4.0, "us": 20.0}}
    found = analyze("host_gaps", context(**CASES["host_gaps"], apis=apis))
    assert found and "cudaMalloc" in found.cause and "allocate once" in found.advice[0]


def test_host_work_before_the_first_kernel_counts() -> None:
    found = analyze("host_gaps", context([("a", 100.0, 1)], 1000.0))
    assert found and found.severity is Severity.HIGH


def test_host_time_that_only_the_tracer_made_does_not() -> None:
    assert analyze("host_gaps", context([("a", 100.0, 1)], 1000.0, time_ms=0.105)) is None


def test_host_time_that_the_previous_call_hides_does_not() -> None:
    """One launch and no synchronization: the host prepares the next call while this one's kernel runs."""
    assert analyze("host_gaps", context([("a", 192.0, 1)], 462.0, time_ms=0.256)) is None
    found = analyze(
        "host_gaps", context([("a", 192.0, 1)], 462.0, time_ms=0.256, syncs={"cudaStreamSynchronize": 1.0})
    )
    assert found


def test_a_transposition_that_the_candidate_wrote_is_no_needless_copy() -> None:
    assert analyze("needless_copies", context([("transpose_kernel", 130.0, 1)], 160.0, nbytes=5e8)) is None


def test_fusion_saves_no_more_than_the_tasks_own_bytes_allow() -> None:
    found = analyze("unfused_chain", context([(ELEMENTWISE, 240.0, 2)], 260.0, nbytes=4.3e12 * 200e-6))
    assert found and found.gain.factor == pytest.approx(260 / 220, rel=0.01)


def test_a_hot_spot_names_the_kernel_and_is_never_severe() -> None:
    found = analyze("hot_spot", context([("big", 900.0, 1), ("small", 50.0, 1)], 980.0, nbytes=1e8))
    assert found and found.kernel == "big" and "95%" in found.cause and found.severity is Severity.MEDIUM
    assert (
        analyze("hot_spot", context([("big", 900.0, 1), ("small", 50.0, 1)], 980.0, nbytes=3.9e9)) is None
    ), "near the floor"


def test_a_power_cap_is_a_hint_of_low_severity() -> None:
    found = analyze("power_bound", context(**CASES["power_bound"]))
    assert found and found.severity is Severity.LOW and "1450" in found.cause
    busy = COOL | {"watts": 690.0}
    assert analyze("power_bound", context([("a", 900.0, 1)], 930.0, power=busy)) is None, (
        "clocks are up all the same"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_diagnostic_explains_itself(name: str) -> None:
    diagnostic = DIAGNOSTICS[name]
    assert diagnostic.name == name and diagnostic.level == "system"
    assert diagnostic.trigger and diagnostic.remedy and diagnostic.gain_basis
    assert set(diagnostic.symptom_of) <= {ANY, *DIAGNOSTICS}, "a symptom of a diagnostic that does not exist"
