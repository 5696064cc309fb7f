"""What is concluded from a trace, on hand-made events with known answers."""

from __future__ import annotations

import pytest

from kernelpro.lab.profile.kernel_names import demangle
from kernelpro.lab.profile.timeline import busy_ns, summarize
from kernelpro.lab.profile.trace import CALL_RANGE, TracedCall, TraceEvent, api_name, calls_from_ranges
from kernelpro.records import Copy


def kernel(
    name: str, start: int, end: int, correlation: int = 0, grid: tuple[int, ...] = (1, 1, 1)
) -> TraceEvent:
    return TraceEvent("kernel", name, start, end, grid, (128, 1, 1), correlation=correlation)


def api(name: str, start: int, end: int, correlation: int = 0, thread: int = 1) -> TraceEvent:
    return TraceEvent("api", name, start, end, correlation=correlation, thread=thread)


def test_a_launch_bound_call_has_gaps() -> None:
    """Ten kernels of 1 us, started every 5 us; our own waiting at the end is no synchronisation of the candidate."""
    events = [api("cudaLaunchKernel", 5000 * i, 5000 * i + 4000, i + 1) for i in range(10)]
    events += [kernel("tiny", 5000 * i + 4000, 5000 * i + 5000, i + 1) for i in range(10)]
    events += [api("cudaDeviceSynchronize", 50_100, 51_000), api("cudaDeviceSynchronize", 50_200, 50_900)]
    timeline, kernels = summarize(events, [TracedCall(0, 50_000, 52_000)])
    assert (timeline.call_us, timeline.busy_us, timeline.gaps_us, timeline.launches) == (52, 10, 36, 10)
    assert timeline.syncs == {} and timeline.apis == {"cudaLaunchKernel": {"count": 10, "us": 40}}
    assert len(kernels) == 1 and kernels[0].launches == 10 and kernels[0].share == 1


def test_a_call_that_makes_the_host_wait() -> None:
    """A driver call inside a runtime call of its thread is part of it; a copy back that blocks the host is a synchronisation."""
    events = [
        api("cudaStreamSynchronize", 100, 900, 5),
        api("cuStreamSynchronize", 200, 800, 6),
        api("cuStreamSynchronize", 300, 700, 7, thread=2),
        api("cudaMemcpy", 1000, 2000, 8),
        api("cuMemcpyDtoH", 1100, 1900, 9),
        TraceEvent("copy", "DtoH", 1200, 1800, nbytes=4, copy_kind="DtoH", correlation=9),
        api("cudaMemcpy", 2000, 2500, 10),
        TraceEvent("copy", "HtoD", 2100, 2400, nbytes=8, copy_kind="HtoD", correlation=10),
        api("cudaMemcpyAsync", 2500, 2600, 11),
        TraceEvent("copy", "DtoH", 2600, 2700, nbytes=4, copy_kind="DtoH", correlation=11),
        api("cudaEventSynchronize", 2700, 2800),
        api("cudaMalloc", 2800, 2900),
        api("cudaGetLastError", 2900, 2950),
    ]
    timeline, _ = summarize(events, [TracedCall(0, 3000, 4000)])
    assert timeline.syncs == {
        "cudaStreamSynchronize": 1,
        "cuStreamSynchronize": 1,
        "cudaMemcpy": 1,
        "cudaEventSynchronize": 1,
    }
    assert set(timeline.apis) == {"cudaMemcpy", "cudaMemcpyAsync", "cudaMalloc"}
    assert timeline.apis["cudaMemcpy"]["count"] == 1, "the copy to the device"


def test_a_copy_heavy_call() -> None:
    """Over two calls: copies by kind, a memset among them, and shares of all device time."""
    events = []
    for start in (0, 10_000):
        events += [TraceEvent("copy", "HtoD", start, start + 3000, nbytes=100, copy_kind="HtoD")] * 2
        events += [
            TraceEvent("memset", "memset", start + 3000, start + 4000, nbytes=50),
            kernel("work", start + 4000, start + 5000),
        ]
    timeline, kernels = summarize(events, [TracedCall(0, 5000, 6000), TracedCall(10_000, 15_000, 16_000)])
    assert timeline.copies == (Copy("HtoD", 2, 200, 6), Copy("memset", 1, 50, 1))
    assert timeline.busy_us == 5 and timeline.gaps_us == 0 and kernels[0].share == 1 / 8


def test_overlapping_streams_are_busy_once() -> None:
    events = [
        kernel("a", 1000, 5000, 1),
        kernel("b", 2000, 3000, 2),
        kernel("c", 4000, 7000, 3),
        kernel("a", 8000, 9000, 4),
    ]
    assert busy_ns(events) == 7000
    timeline, kernels = summarize(events, [TracedCall(0, 500, 10_000)])
    assert timeline.busy_us == 7 and timeline.gaps_us == 1 and timeline.launches == 4
    assert [(k.name, k.microseconds, k.launches) for k in kernels] == [("a", 5, 2), ("c", 3, 1), ("b", 1, 1)]


def test_a_graph_is_launched_once() -> None:
    events = [
        api("cudaGraphLaunch", 0, 900, 5),
        *(kernel("node", 1000 + 100 * i, 1090 + 100 * i, 5) for i in range(8)),
        kernel("plain", 2000, 2100, 6),
    ]
    timeline, kernels = summarize(events, [TracedCall(0, 1000, 3000)])
    assert timeline.launches == 2 and {k.name: k.launches for k in kernels} == {"node": 8, "plain": 1}


def test_a_kernel_of_several_grids_shows_the_one_that_takes_its_time() -> None:
    events = [
        kernel("k", 0, 100, 1, (999, 1, 1)),
        kernel("k", 100, 400, 2, (7, 1, 1)),
        kernel("k", 400, 700, 3, (7, 1, 1)),
    ]
    _, (only,) = summarize(events, [TracedCall(0, 10, 1000)])
    assert only.grid == (7, 1, 1) and only.launches == 3 and only.microseconds == 0.7


def test_one_hiccup_of_the_host_moves_no_time() -> None:
    calls = [TracedCall(i * 10_000, i * 10_000 + 10, i * 10_000 + 100) for i in range(4)] + [
        TracedCall(40_000, 49_000, 50_000)
    ]
    assert summarize([], calls)[0].call_us == 0.1


def test_events_outside_the_calls_do_not_count() -> None:
    timeline, kernels = summarize(
        [kernel("before", 0, 5), kernel("in", 15, 18), kernel("after", 30, 40)], [TracedCall(10, 12, 20)]
    )
    assert [k.name for k in kernels] == ["in"] and timeline.launches == 1


def test_a_trace_without_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="no complete call"):
        summarize([kernel("k", 0, 1)], calls_from_ranges([(CALL_RANGE, 0, 10)]))


def test_names() -> None:
    assert api_name("cudaStreamSynchronize_v3020") == "cudaStreamSynchronize"
    assert (
        api_name("cudaMemcpyAsync_ptsz_v7000") == "cudaMemcpyAsync"
        and api_name("cuMemcpyDtoHAsync_v2_ptsz") == "cuMemcpyDtoHAsync"
    )
    assert demangle("_Z1fILi4EfEvPT0_") == "void f<4, float>(float*)"
    assert demangle("_softmax_kernel") == "_softmax_kernel" and demangle("_Zwhat") == "_Zwhat"
