"""What a trace of a few calls holds, whichever tracer made it, and how the traced calls are run.

Three tracers (CUPTI and torch.profiler in recorder.py, nsys in timeline_nsys.py) give the same `Trace`:
events on one clock, and the calls as ranges on that clock. timeline.py turns it into a `records.Timeline`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

CALL, WAIT = "kernelpro-call", "kernelpro-wait"
"""Ranges that a tracer marks: one call until the device has finished it, and inside it our own waiting for that."""
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
"""CUpti_ActivityMemcpyKind; nsys's ENUM_CUDA_MEMCPY_OPER has the same numbers."""


class Event(NamedTuple):
    """One kernel, copy or memset on the device, or one API call on the host; times in nanoseconds of the tracer's clock."""

    kind: Literal["kernel", "copy", "memset", "api"]
    name: str
    """Kernels: as linked (mangled) where the tracer knows it. API calls: without version, `cudaStreamSynchronize`."""
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
    """Equal for an API call and what it started on the device; 0: unknown."""
    thread: int = 0
    """Of an API call."""


class Call(NamedTuple):
    """One traced call on the host."""

    start_ns: int
    returned_ns: int
    """The candidate has returned; what the host does from here on is our own waiting for the device."""
    end_ns: int


@dataclass(frozen=True)
class Trace:
    source: Literal["nsys", "cupti"]
    calls: tuple[Call, ...]
    events: tuple[Event, ...]
    note: str = ""
    """Why the tracer is not the usual one; empty where it is."""

    def to_json(self) -> dict[str, Any]:
        """Rows instead of objects: a trace of thousands of events crosses a process in one message."""
        return {
            "source": self.source,
            "note": self.note,
            "calls": [list(c) for c in self.calls],
            "events": [list(e) for e in self.events],
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """The trace again. It comes out of a candidate's process: ValueError where it is anything else than a trace."""
        try:
            source: Literal["nsys", "cupti"] = "nsys" if data["source"] == "nsys" else "cupti"
            calls = tuple(Call(*(int(stamp) for stamp in row)) for row in data["calls"])
            return cls(source, calls, tuple(_event(row) for row in data["events"]), str(data["note"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a trace: {type(error).__name__}: {error}") from error


def _event(row: Any) -> Event:
    made = Event(*row)
    if (
        made.kind not in ("kernel", "copy", "memset", "api")
        or not isinstance(made.name, str)
        or not isinstance(made.copy_kind, str)
    ):
        raise ValueError(f"no event: {row!r:.80}")
    numbers = (made.start_ns, made.end_ns, *made[6:10], *made[11:], *made.grid, *made.block)
    if (
        not all(isinstance(number, int) and 0 <= number < 1 << 64 for number in numbers)
        or made.end_ns < made.start_ns
    ):
        raise ValueError(f"no event: {row!r:.80}")
    return made._replace(grid=tuple(made.grid), block=tuple(made.block))


def api_name(name: str) -> str:
    """`cudaMemcpyAsync_ptsz_v7000` -> `cudaMemcpyAsync`, `cuCtxSynchronize_v2` -> `cuCtxSynchronize`."""
    return re.sub(r"(_v\d+|_pts[zd])+$", "", name)


def repeat(
    call: Callable[[], object],
    synchronize: Callable[[], object],
    calls: int,
    mark: Callable[[str], AbstractContextManager[object]],
) -> None:
    """Run the calls to be traced, each between marks. A first one stays unmarked: it bears the tracer's own start."""
    call()
    synchronize()
    for _ in range(calls):
        with mark(CALL):
            call()
            with mark(WAIT):
                synchronize()


def calls_of(ranges: Iterable[tuple[str, int, int]]) -> tuple[Call, ...]:
    """Calls from marked ranges (name, start, end); one whose waiting is not in the trace is incomplete and left out."""
    ranges = sorted(ranges, key=lambda r: r[1])
    waits = [(start, end) for name, start, end in ranges if name == WAIT]
    found = []
    for name, start, end in ranges:
        inside = [begun for begun, done in waits if start <= begun <= done <= end]
        if name == CALL and inside:
            found.append(Call(start, inside[-1], end))
    return tuple(found)


def by_call(events: Iterable[Event], calls: Sequence[Call]) -> list[list[Event]]:
    """The events that began in each call; a call ends when the device has finished, so nothing is cut."""
    starts = [call.start_ns for call in calls]
    parts: list[list[Event]] = [[] for _ in calls]
    for event in events:
        at = bisect_right(starts, event.start_ns) - 1
        if at >= 0 and event.start_ns <= calls[at].end_ns:
            parts[at].append(event)
    return parts
