"""Reduces a trace to the timeline of one call and its kernels, in the same way for every tracer.

In each call, the device is *busy* while at least one kernel, copy or memset runs (the union of their
intervals). It has *gaps* where nothing runs between the first and the last of them. Busy time, gaps and the
duration of a call are medians over the calls, because one hiccup of the host would move the mean of five. All
other values are means.

API calls count once: the driver calls inside a runtime call are part of it. The tracer's own wait at the end
of each call is ignored. A copy that blocks the host until data has arrived (cudaMemcpy from the device)
counts both as a synchronization and as a copy."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Literal

from kernelpro.lab.profile.kernel_names import demangle
from kernelpro.lab.profile.trace import TracedCall, TraceEvent, group_by_call
from kernelpro.records import Copy, Kernel, Timeline

_SYNCS = re.compile(r"cu(da)?(Stream|Device|Thread|Event|Ctx)Synchronize")
_BLOCKING_COPY = re.compile(r"cu(da)?Memcpy(?!.*Async)")
_QUERY = re.compile(r"_*cu(da)?\w*(Get|Peek|IsCapturing|CallConfiguration|Occupancy)")
_QUERY_NS = 2000
"""State queries are ignored unless they take at least this time, as cudaGetDeviceProperties does. Most take
well below a microsecond."""


def summarize(
    events: Iterable[TraceEvent], calls: Sequence[TracedCall], source: Literal["nsys", "cupti"] = "cupti"
) -> tuple[Timeline, list[Kernel]]:
    """Return the timeline of an average call, and its kernels by share.

    Raises ValueError if the trace has no complete call.
    """
    if not calls:
        raise ValueError("the trace has no complete call")
    parts = group_by_call(events, calls)
    device = [[event for event in part if event.kind != "api"] for part in parts]
    host = [
        group_nested_calls(e for e in part if e.kind == "api" and e.start_ns < call.returned_ns)
        for part, call in zip(parts, calls, strict=True)
    ]
    busy = [busy_ns(part) for part in device]
    spans = [max(e.end_ns for e in part) - min(e.start_ns for e in part) if part else 0 for part in device]
    everything = [event for part in device for event in part]
    syncs, apis = _apis([group for part in host for group in part], everything, len(calls))
    timeline = Timeline(
        source=source,
        calls=len(calls),
        call_us=median(call.end_ns - call.start_ns for call in calls) / 1e3,
        busy_us=median(busy) / 1e3,
        gaps_us=median(span - work for span, work in zip(spans, busy, strict=True)) / 1e3,
        launches=sum(map(count_launches, device)) / len(calls),
        copies=_copies(everything, len(calls)),
        syncs=syncs,
        apis=apis,
    )
    return timeline, _kernels(everything, len(calls))


def busy_ns(events: Iterable[TraceEvent]) -> int:
    """Return the length of the union of the events' intervals."""
    total, reached = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns):
        total += max(0, event.end_ns - max(event.start_ns, reached))
        reached = max(reached, event.end_ns)
    return total


def count_launches(events: Iterable[TraceEvent]) -> int:
    """Return the number of launches by the host. All kernels of a CUDA graph count as one launch: they share
    its correlation."""
    kernels = [event for event in events if event.kind == "kernel"]
    return len({event.correlation for event in kernels if event.correlation}) + sum(
        not event.correlation for event in kernels
    )


def group_nested_calls(apis: Iterable[TraceEvent]) -> list[list[TraceEvent]]:
    """Group nested API calls of a thread. The outermost call comes first in its group."""
    groups: dict[int, list[list[TraceEvent]]] = defaultdict(list)
    for event in sorted(apis, key=lambda e: (e.start_ns, -e.end_ns, not e.name.startswith("cuda"))):
        thread_groups = groups[event.thread]
        if thread_groups and (
            event.end_ns <= thread_groups[-1][0].end_ns
            or (event.correlation and event.correlation == thread_groups[-1][0].correlation)
        ):
            thread_groups[-1].append(event)
        else:
            thread_groups.append([event])
    return [group for thread_groups in groups.values() for group in thread_groups]


def _apis(
    groups: list[list[TraceEvent]], device: list[TraceEvent], calls: int
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    returned_copies = {event.correlation for event in device if event.copy_kind in ("DtoH", "AtoH")} - {0}
    syncs: dict[str, float] = defaultdict(float)
    apis: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0.0, "us": 0.0})
    for group in groups:
        outer = group[0]
        if _SYNCS.fullmatch(outer.name) or (
            _BLOCKING_COPY.match(outer.name) and any(e.correlation in returned_copies for e in group)
        ):
            syncs[outer.name] += 1 / calls
        elif not _QUERY.match(outer.name) or outer.duration_ns >= _QUERY_NS:
            apis[outer.name]["count"] += 1 / calls
            apis[outer.name]["us"] += outer.duration_ns / 1e3 / calls
    return dict(syncs), dict(apis)


def _copies(device: list[TraceEvent], calls: int) -> tuple[Copy, ...]:
    kinds: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in device:
        if event.kind != "kernel":
            kinds[event.copy_kind or "memset"].append(event)
    copies = [
        Copy(
            kind,
            len(events) / calls,
            sum(e.nbytes for e in events) / calls,
            sum(e.duration_ns for e in events) / 1e3 / calls,
        )
        for kind, events in kinds.items()
    ]
    return tuple(sorted(copies, key=lambda copy: -copy.microseconds))


def _kernels(device: list[TraceEvent], calls: int) -> list[Kernel]:
    """Return kernels merged by name, each with the launch configuration in which it spent the most time."""
    total = sum(event.duration_ns for event in device) or 1
    events_by_name: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in device:
        if event.kind == "kernel":
            events_by_name[event.name].append(event)
    kernels = []
    for name, launches in events_by_name.items():
        time_by_config: Counter[tuple[Any, ...]] = Counter()
        for e in launches:
            config = (e.grid, e.block, e.registers, e.static_shared, e.dynamic_shared)
            time_by_config[config] += e.duration_ns
        [(config, _)] = time_by_config.most_common(1)
        time_ns = time_by_config.total()
        kernels.append(
            Kernel(demangle(name), time_ns / 1e3 / calls, len(launches) / calls, time_ns / total, *config)
        )
    return sorted(kernels, key=lambda kernel: -kernel.share)
