"""The trace of a few calls in a format that all tracers share, and the loop that runs the traced calls.

Three tracers (CUPTI and torch.profiler in tracers.py, Nsight Systems in nsys.py) produce a `Trace`: events on
one clock, and the calls as ranges on that clock. timeline.py turns it into a `records.Timeline`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

CALL_RANGE, WAIT_RANGE = "kernelpro-call", "kernelpro-wait"
"""Names of the ranges that a tracer marks: a call until the device has finished it, and the wait for the
device at its end."""
COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
"""CUpti_ActivityMemcpyKind; nsys's ENUM_CUDA_MEMCPY_OPER has the same values."""


class TraceEvent(NamedTuple):
    """A kernel, copy or memset on the device, or an API call on the host. Times are in ns on the tracer's
    clock."""

    kind: Literal["kernel", "copy", "memset", "api"]
    name: str
    """Of a kernel, the mangled name if the tracer knows it. Of an API call, the name without version suffix,
    such as `cudaStreamSynchronize`."""
    start_ns: int
    end_ns: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    nbytes: int = 0
    copy_kind: str = ""
    correlation: int = 0
    """Equal for an API call and the work that it launched on the device; 0 if unknown."""
    thread: int = 0
    """The host thread of an API call."""

    @property
    def duration_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns


class TracedCall(NamedTuple):
    """One traced call on the host."""

    start_ns: int
    returned_ns: int
    """When the candidate returned. From then on, the host waits for the device."""
    end_ns: int


@dataclass(frozen=True)
class Trace:
    """Events and calls on one clock."""

    source: Literal["nsys", "cupti"]
    calls: tuple[TracedCall, ...]
    events: tuple[TraceEvent, ...]
    note: str = ""
    """Why a tracer other than the default was used; empty for the default."""

    def to_json(self) -> dict[str, Any]:
        """Return rows instead of objects, because one message has thousands of events."""
        return {
            "source": self.source,
            "note": self.note,
            "calls": [list(c) for c in self.calls],
            "events": [list(e) for e in self.events],
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """Parse a trace from a candidate's process. Raises ValueError if it is not a valid trace."""
        try:
            source: Literal["nsys", "cupti"] = "nsys" if data["source"] == "nsys" else "cupti"
            calls = tuple(TracedCall(*(int(stamp) for stamp in row)) for row in data["calls"])
            return cls(source, calls, tuple(_parse_event(row) for row in data["events"]), str(data["note"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a trace: {type(error).__name__}: {error}") from error


def _parse_event(row: Any) -> TraceEvent:
    event = TraceEvent(*row)
    if (
        event.kind not in ("kernel", "copy", "memset", "api")
        or not isinstance(event.name, str)
        or not isinstance(event.copy_kind, str)
    ):
        raise ValueError(f"not an event: {row!r:.80}")
    numbers = (event.start_ns, event.end_ns, *event[6:10], *event[11:], *event.grid, *event.block)
    if (
        not all(isinstance(number, int) and 0 <= number < 1 << 64 for number in numbers)
        or event.end_ns < event.start_ns
    ):
        raise ValueError(f"not an event: {row!r:.80}")
    return event._replace(grid=tuple(event.grid), block=tuple(event.block))


def api_name(name: str) -> str:
    """Remove version suffixes: `cudaMemcpyAsync_ptsz_v7000` -> `cudaMemcpyAsync`."""
    return re.sub(r"(_v\d+|_pts[zd])+$", "", name)


def run_traced_calls(
    call: Callable[[], object],
    synchronize: Callable[[], object],
    calls: int,
    mark: Callable[[str], AbstractContextManager[object]],
) -> None:
    """Run the calls to trace, each in a marked range. The first call includes the tracer's startup, and is
    not marked."""
    call()
    synchronize()
    for _ in range(calls):
        with mark(CALL_RANGE):
            call()
            with mark(WAIT_RANGE):
                synchronize()


def calls_from_ranges(ranges: Iterable[tuple[str, int, int]]) -> tuple[TracedCall, ...]:
    """Return the calls in marked ranges (name, start, end). A call without its wait is incomplete, and
    ignored."""
    ranges = sorted(ranges, key=lambda r: r[1])
    waits = [(start, end) for name, start, end in ranges if name == WAIT_RANGE]
    calls = []
    for name, start, end in ranges:
        waits_inside = [first for first, last in waits if start <= first <= last <= end]
        if name == CALL_RANGE and waits_inside:
            calls.append(TracedCall(start, waits_inside[-1], end))
    return tuple(calls)


def group_by_call(events: Iterable[TraceEvent], calls: Sequence[TracedCall]) -> list[list[TraceEvent]]:
    """Return the events that began in each call. A call ends when the device has finished, so that no event
    is cut off."""
    starts = [call.start_ns for call in calls]
    parts: list[list[TraceEvent]] = [[] for _ in calls]
    for event in events:
        index = bisect_right(starts, event.start_ns) - 1
        if index >= 0 and event.start_ns <= calls[index].end_ns:
            parts[index].append(event)
    return parts
