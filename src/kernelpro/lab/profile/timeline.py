"""From a trace to the timeline of one call and its kernels; the same reduction for every tracer.

Of each call: the device is *busy* while at least one kernel, copy or memset runs (the union of their intervals),
and has *gaps* where nothing runs between the first and the last of them. These and the length of the call are
medians over the calls, since one hiccup of the host would move the mean of five; counts and all else are means.

API calls count once: the driver calls inside a runtime call are part of it. Our own waiting at the end of each
call is left out. A copy that blocks the host until data has come back (cudaMemcpy from the device) is a
synchronisation as well as a copy.
"""

from __future__ import annotations

import ctypes
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from kernelpro.lab.profile.trace import Call, Event, by_call
from kernelpro.records import Copy, Kernel, Timeline

_SYNCS = re.compile(r"cu(da)?(Stream|Device|Thread|Event|Ctx)Synchronize")
_BLOCKING_COPY = re.compile(r"cu(da)?Memcpy(?!.*Async)")
_QUERY = re.compile(r"_*cu(da)?\w*(Get|Peek|IsCapturing|CallConfiguration|Occupancy)")
_QUERY_NS = 2000
"""Asking for a state takes well below a microsecond and tells nothing; a slow one (cudaGetDeviceProperties) is worth showing."""


def summarise(
    events: Iterable[Event], calls: Sequence[Call], source: Literal["nsys", "cupti"] = "cupti"
) -> tuple[Timeline, list[Kernel]]:
    """The timeline of an average call, and its kernels by share. ValueError where the trace holds no complete call."""
    if not calls:
        raise ValueError("the trace holds no complete call")
    parts = by_call(events, calls)
    device = [[event for event in part if event.kind != "api"] for part in parts]
    host = [
        outermost(e for e in part if e.kind == "api" and e.start_ns < call.returned_ns)
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
        launches=sum(map(launches, device)) / len(calls),
        copies=_copies(everything, len(calls)),
        syncs=syncs,
        apis=apis,
    )
    return timeline, _kernels(everything, len(calls))


def busy_ns(events: Iterable[Event]) -> int:
    """Length of the union of the events' intervals."""
    total, reached = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns):
        total += max(0, event.end_ns - max(event.start_ns, reached))
        reached = max(reached, event.end_ns)
    return total


def launches(events: Iterable[Event]) -> int:
    """Starts of kernels by the host. The kernels of a graph carry the correlation of its one launch."""
    kernels = [event for event in events if event.kind == "kernel"]
    return len({event.correlation for event in kernels if event.correlation}) + sum(
        not event.correlation for event in kernels
    )


def outermost(apis: Iterable[Event]) -> list[list[Event]]:
    """API calls that are not part of another one of their thread, each followed by those that are part of it."""
    groups: dict[int, list[list[Event]]] = defaultdict(list)
    for event in sorted(apis, key=lambda e: (e.start_ns, -e.end_ns, not e.name.startswith("cuda"))):
        own = groups[event.thread]
        if own and (
            event.end_ns <= own[-1][0].end_ns
            or (event.correlation and event.correlation == own[-1][0].correlation)
        ):
            own[-1].append(event)
        else:
            own.append([event])
    return [group for own in groups.values() for group in own]


def _apis(
    groups: list[list[Event]], device: list[Event], calls: int
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    returned = {event.correlation for event in device if event.copy_kind in ("DtoH", "AtoH")} - {0}
    syncs: dict[str, float] = defaultdict(float)
    apis: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0.0, "us": 0.0})
    for group in groups:
        outer = group[0]
        took = outer.end_ns - outer.start_ns
        if _SYNCS.fullmatch(outer.name) or (
            _BLOCKING_COPY.match(outer.name) and any(e.correlation in returned for e in group)
        ):
            syncs[outer.name] += 1 / calls
        elif not _QUERY.match(outer.name) or took >= _QUERY_NS:
            apis[outer.name]["count"] += 1 / calls
            apis[outer.name]["us"] += took / 1e3 / calls
    return dict(syncs), dict(apis)


def _copies(device: list[Event], calls: int) -> tuple[Copy, ...]:
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in device:
        if event.kind != "kernel":
            kinds[event.copy_kind or "memset"].append(event)
    made = [
        Copy(
            kind,
            len(own) / calls,
            sum(e.nbytes for e in own) / calls,
            sum(e.end_ns - e.start_ns for e in own) / 1e3 / calls,
        )
        for kind, own in kinds.items()
    ]
    return tuple(sorted(made, key=lambda copy: -copy.microseconds))


def _kernels(device: list[Event], calls: int) -> list[Kernel]:
    """Kernels merged by name, with the launch configuration in which a name spent most of its time."""
    total = sum(event.end_ns - event.start_ns for event in device) or 1
    named: dict[str, list[Event]] = defaultdict(list)
    for event in device:
        if event.kind == "kernel":
            named[event.name].append(event)
    made = []
    for name, own in named.items():
        spent: dict[tuple[tuple[int, ...], tuple[int, ...], int, int, int], int] = defaultdict(int)
        for e in own:
            spent[e.grid, e.block, e.registers, e.static_shared, e.dynamic_shared] += e.end_ns - e.start_ns
        grid, block, registers, static, dynamic = max(spent, key=lambda key: spent[key])
        time = sum(spent.values())
        made.append(
            Kernel(
                readable(name),
                time / 1e3 / calls,
                len(own) / calls,
                time / total,
                grid,
                block,
                registers,
                static,
                dynamic,
            )
        )
    return sorted(made, key=lambda kernel: -kernel.share)


def readable(name: str) -> str:
    """A C++ name as written in the source; as it is where it is none, or too long for the C++ library's demangler."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    text = library.__cxa_demangle(ctypes.c_char_p(name.encode()), None, None, None)
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))
