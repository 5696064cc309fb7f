"""Tracers inside the candidate's process: CUPTI's activity records through ctypes, else torch.profiler.

CUPTI starts in a fraction of a second; torch.profiler takes four seconds. `LAYOUT` has the offset and struct
code of each field that is read from CUPTI's records. They were computed with offsetof from the headers of
CUDA 12.8 (Kernel9), 13.0 (Kernel10) and 13.2 (Kernel11), and are the same in all of them. A test computes
them again with the installed headers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernelpro.lab.profile.trace import (
    COPY_KINDS,
    Trace,
    TracedCall,
    TraceEvent,
    api_name,
    calls_from_ranges,
    group_by_call,
    run_traced_calls,
)
from kernelpro.lab.sandbox import cupti
from kernelpro.lab.sandbox.cupti import CuptiUnavailable

LAYOUT: dict[str, dict[str, tuple[int, str]]] = {
    "CUpti_ActivityKernel": {
        "registersPerThread": (6, "H"),
        "start": (16, "Q"),
        "end": (24, "Q"),
        "gridX": (52, "i"),
        "gridY": (56, "i"),
        "gridZ": (60, "i"),
        "blockX": (64, "i"),
        "blockY": (68, "i"),
        "blockZ": (72, "i"),
        "staticSharedMemory": (76, "i"),
        "dynamicSharedMemory": (80, "i"),
        "correlationId": (92, "I"),
        "name": (104, "Q"),
    },
    "CUpti_ActivityMemcpy": {
        "copyKind": (4, "B"),
        "bytes": (8, "Q"),
        "start": (16, "Q"),
        "end": (24, "Q"),
        "correlationId": (44, "I"),
    },
    "CUpti_ActivityMemset": {
        "bytes": (8, "Q"),
        "start": (16, "Q"),
        "end": (24, "Q"),
        "correlationId": (44, "I"),
    },
    "CUpti_ActivityAPI": {
        "cbid": (4, "I"),
        "start": (8, "Q"),
        "end": (16, "Q"),
        "threadId": (28, "I"),
        "correlationId": (32, "I"),
    },
}
_MEMCPY, _MEMSET, _KERNEL, _DRIVER, _RUNTIME, _CONCURRENT_KERNEL = 1, 2, 3, 4, 5, 10  # CUpti_ActivityKind
_ACTIVITY_KINDS = (_CONCURRENT_KERNEL, _MEMCPY, _MEMSET, _RUNTIME, _DRIVER)
_CALLBACK_DOMAINS = {_DRIVER: 1, _RUNTIME: 2}  # CUpti_CallbackDomain
_MAX_EVENTS = 50_000
"""A trace is one message of at most 16 MiB, and an event with a long kernel name takes about 300 bytes."""


def _fields(address: int, record: str) -> dict[str, int]:
    layout = LAYOUT[record]
    data = ctypes.string_at(address, max(offset + struct.calcsize(code) for offset, code in layout.values()))
    return {name: struct.unpack_from(code, data, offset)[0] for name, (offset, code) in layout.items()}


class CuptiTracer(cupti.KernelTimeRecorder):
    """Records kernels, copies, memsets and API calls while `running`."""

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []
        self._names: dict[tuple[int, int], str] = {}
        super().__init__()
        for callback in self._callbacks:  # CUPTI cannot unregister them, and may call them at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetResultString(code, ctypes.byref(text))
            raise CuptiUnavailable(
                f"CUPTI: {what} failed with error {code} ({(text.value or b'unknown').decode()})"
            )

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        while not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            event = self._decode(record.value or 0)
            if event and event.end_ns:  # a record without an end was not timed
                self._events.append(event)
        self._buffers.pop(buffer, None)

    def _decode(self, address: int) -> TraceEvent | None:
        kind = ctypes.c_uint32.from_address(address).value
        if kind in (_KERNEL, _CONCURRENT_KERNEL):
            f = _fields(address, "CUpti_ActivityKernel")
            return TraceEvent(
                "kernel",
                (ctypes.string_at(f["name"]) if f["name"] else b"?").decode(errors="replace"),
                f["start"],
                f["end"],
                grid=(f["gridX"], f["gridY"], f["gridZ"]),
                block=(f["blockX"], f["blockY"], f["blockZ"]),
                registers=f["registersPerThread"],
                static_shared=f["staticSharedMemory"],
                dynamic_shared=f["dynamicSharedMemory"],
                correlation=f["correlationId"],
            )
        if kind == _MEMCPY:
            f = _fields(address, "CUpti_ActivityMemcpy")
            way = COPY_KINDS.get(f["copyKind"], "other")
            return TraceEvent(
                "copy",
                way,
                f["start"],
                f["end"],
                nbytes=f["bytes"],
                copy_kind=way,
                correlation=f["correlationId"],
            )
        if kind == _MEMSET:
            f = _fields(address, "CUpti_ActivityMemset")
            return TraceEvent(
                "memset", "memset", f["start"], f["end"], nbytes=f["bytes"], correlation=f["correlationId"]
            )
        if kind in _CALLBACK_DOMAINS:
            f = _fields(address, "CUpti_ActivityAPI")
            name = self._api(_CALLBACK_DOMAINS[kind], f["cbid"])
            return TraceEvent(
                "api", name, f["start"], f["end"], correlation=f["correlationId"], thread=f["threadId"]
            )
        return None

    def _api(self, domain: int, number: int) -> str:
        if (domain, number) not in self._names:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetCallbackName(domain, ctypes.c_uint32(number), ctypes.byref(text))
            name = text.value.decode() if text.value else f"{'cu' if domain == 1 else 'cuda'}Api{number}"
            self._names[domain, number] = api_name(name)
        return self._names[domain, number]

    def now(self) -> int:
        """Return the time on the clock of the records."""
        stamp = ctypes.c_uint64()
        self._check(self._cupti.cuptiGetTimestamp(ctypes.byref(stamp)), "reading the clock")
        return stamp.value

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record until the block ends."""
        with contextlib.ExitStack() as stack:
            for kind in _ACTIVITY_KINDS:
                self._check(self._cupti.cuptiActivityEnable(kind), f"enabling records of kind {kind}")
                stack.callback(self._cupti.cuptiActivityDisable, kind)
            stack.callback(lambda: self._check(self._cupti.cuptiActivityFlushAll(1), "flushing"))
            yield

    def events(self) -> list[TraceEvent]:
        """Return the recorded events in order of their start."""
        return sorted(self._events, key=lambda event: event.start_ns)


def trace_calls(
    call: Callable[[], object], synchronize: Callable[[], object], calls: int = 5
) -> dict[str, Any]:
    """Trace `calls` calls of a warm candidate, each until `synchronize` returns. Returns `Trace.to_json`."""
    try:
        trace = trace_with_cupti(call, synchronize, calls)
    except CuptiUnavailable as error:
        trace = trace_with_torch(
            call, synchronize, calls, f"torch.profiler was used instead of CUPTI: {error}"
        )
    return trace.to_json()


def trace_with_cupti(call: Callable[[], object], synchronize: Callable[[], object], calls: int) -> Trace:
    """Trace with CUPTI. Raises CuptiUnavailable if CUPTI does not work or records nothing on the device."""
    tracer = CuptiTracer()
    ranges: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        start = tracer.now()
        yield
        ranges.append((name, start, tracer.now()))

    with tracer.running():
        run_traced_calls(call, synchronize, calls, mark)
    trace = _truncate(calls_from_ranges(ranges), tracer.events())
    if all(event.kind == "api" for event in trace.events):
        raise CuptiUnavailable("CUPTI recorded nothing on the device")
    return trace


def trace_with_torch(
    call: Callable[[], object], synchronize: Callable[[], object], calls: int, reason: str
) -> Trace:
    """Trace with torch.profiler. `reason`: why CUPTI was not used."""
    from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

    activities = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()  # type: ignore[no-untyped-call]
    with profile(activities=sorted(activities, key=str)) as profiler:
        run_traced_calls(call, synchronize, calls, record_function)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        ranges, events = parse_chrome_trace(json.loads(path.read_text()))
    return _truncate(calls_from_ranges(ranges), events, reason)


def parse_chrome_trace(data: dict[str, Any]) -> tuple[list[tuple[str, int, int]], list[TraceEvent]]:
    """Return the marked ranges and events of torch.profiler's trace.

    It reports only the sum of static and dynamic shared memory, which is taken as dynamic.
    """
    ranges: list[tuple[str, int, int]] = []
    events: list[TraceEvent] = []
    for row in data["traceEvents"]:
        if row.get("ph") != "X":
            continue
        kind, name, args = row.get("cat"), str(row["name"]), row.get("args", {})
        start, end = round(1e3 * row["ts"]), round(1e3 * (row["ts"] + row.get("dur", 0)))
        correlation, nbytes = int(args.get("correlation", 0)), int(args.get("bytes", 0))
        if kind == "user_annotation":
            ranges.append((name, start, end))
        elif kind == "kernel":
            grid, block = tuple(args.get("grid", ())), tuple(args.get("block", ()))
            registers, shared = int(args.get("registers per thread", 0)), int(args.get("shared memory", 0))
            events.append(
                TraceEvent(
                    "kernel", name, start, end, grid, block, registers, 0, shared, correlation=correlation
                )
            )
        elif kind == "gpu_memcpy":  # "Memcpy DtoH (Device -> Pageable)"
            direction = next((known for known in COPY_KINDS.values() if known in name.split()), "other")
            events.append(
                TraceEvent(
                    "copy", direction, start, end, nbytes=nbytes, copy_kind=direction, correlation=correlation
                )
            )
        elif kind == "gpu_memset":
            events.append(TraceEvent("memset", "memset", start, end, nbytes=nbytes, correlation=correlation))
        elif kind in ("cuda_runtime", "cuda_driver"):
            events.append(
                TraceEvent(
                    "api", api_name(name), start, end, correlation=correlation, thread=int(row.get("tid", 0))
                )
            )
    return ranges, sorted(events, key=lambda event: event.start_ns)


def _truncate(calls: tuple[TracedCall, ...], events: list[TraceEvent], note: str = "") -> Trace:
    """Return a trace of as many calls as fit into one message, at least one."""
    parts = group_by_call(events, calls)
    while len(parts) > 1 and sum(map(len, parts)) > _MAX_EVENTS:
        parts.pop()
    return Trace("cupti", calls[: len(parts)], tuple(event for part in parts for event in part), note)
