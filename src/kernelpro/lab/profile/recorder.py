"""A trace made inside the candidate's process: CUPTI's activity records through ctypes, else torch.profiler.

CUPTI starts in a fraction of a second where torch.profiler takes four. `LAYOUT` is all that is known here of its
records: offset and struct code of each field that is read. They were computed with offsetof from the headers of
CUDA 12.8 (Kernel9), 13.0 (Kernel10) and 13.2 (Kernel11), where they are the same; a test does it again with the
headers it finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernelpro.lab.profile.trace import COPY_KINDS, Call, Event, Trace, api_name, by_call, calls_of, repeat
from kernelpro.lab.sandbox import cupti
from kernelpro.lab.sandbox.cupti import Unavailable

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
_TRACED = (_CONCURRENT_KERNEL, _MEMCPY, _MEMSET, _RUNTIME, _DRIVER)
_DOMAIN = {_DRIVER: 1, _RUNTIME: 2}  # CUpti_CallbackDomain
_MOST_EVENTS = 50_000
"""A trace travels as one message of at most 16 MiB, and an event of a long kernel name takes about 300 bytes."""


def _fields(address: int, record: str) -> dict[str, int]:
    layout = LAYOUT[record]
    data = ctypes.string_at(address, max(offset + struct.calcsize(code) for offset, code in layout.values()))
    return {name: struct.unpack_from(code, data, offset)[0] for name, (offset, code) in layout.items()}


class Recorder(cupti.Recorder):
    """Records kernels, copies, memsets and API calls while `running`; `events` afterwards."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._names: dict[tuple[int, int], str] = {}
        super().__init__()
        for callback in self._callbacks:  # CUPTI cannot unregister them and may call once more at the exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetResultString(code, ctypes.byref(text))
            raise Unavailable(
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

    def _decode(self, address: int) -> Event | None:
        kind = ctypes.c_uint32.from_address(address).value
        if kind in (_KERNEL, _CONCURRENT_KERNEL):
            f = _fields(address, "CUpti_ActivityKernel")
            return Event(
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
            return Event(
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
            return Event(
                "memset", "memset", f["start"], f["end"], nbytes=f["bytes"], correlation=f["correlationId"]
            )
        if kind in _DOMAIN:
            f = _fields(address, "CUpti_ActivityAPI")
            name = self._api(_DOMAIN[kind], f["cbid"])
            return Event(
                "api", name, f["start"], f["end"], correlation=f["correlationId"], thread=f["threadId"]
            )
        return None

    def _api(self, domain: int, number: int) -> str:
        if (domain, number) not in self._names:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetCallbackName(domain, ctypes.c_uint32(number), ctypes.byref(text))
            known = text.value.decode() if text.value else f"{'cu' if domain == 1 else 'cuda'}Api{number}"
            self._names[domain, number] = api_name(known)
        return self._names[domain, number]

    def now(self) -> int:
        """The clock of the records."""
        stamp = ctypes.c_uint64()
        self._check(self._cupti.cuptiGetTimestamp(ctypes.byref(stamp)), "reading the clock")
        return stamp.value

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind in _TRACED:
                self._check(self._cupti.cuptiActivityEnable(kind), f"enabling records of kind {kind}")
                stack.callback(self._cupti.cuptiActivityDisable, kind)
            stack.callback(lambda: self._check(self._cupti.cuptiActivityFlushAll(1), "flushing"))
            yield

    def events(self) -> list[Event]:
        return sorted(self._events, key=lambda event: event.start_ns)


def observe(call: Callable[[], object], synchronize: Callable[[], object], calls: int = 5) -> dict[str, Any]:
    """Trace `calls` calls of a warm candidate, each until `synchronize` returns; the `Trace` as JSON."""
    try:
        trace = by_cupti(call, synchronize, calls)
    except Unavailable as error:
        trace = by_torch(call, synchronize, calls, f"torch.profiler stood in for CUPTI: {error}")
    return trace.to_json()


def by_cupti(call: Callable[[], object], synchronize: Callable[[], object], calls: int) -> Trace:
    recorder = Recorder()
    ranges: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        start = recorder.now()
        yield
        ranges.append((name, start, recorder.now()))

    with recorder.running():
        repeat(call, synchronize, calls, mark)
    trace = _fitting(calls_of(ranges), recorder.events())
    if all(event.kind == "api" for event in trace.events):
        raise Unavailable("CUPTI recorded nothing on the device")
    return trace


def by_torch(call: Callable[[], object], synchronize: Callable[[], object], calls: int, why: str) -> Trace:
    from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()  # type: ignore[no-untyped-call]
    with profile(activities=sorted(wanted, key=str)) as recorded:
        repeat(call, synchronize, calls, record_function)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        ranges, events = read_chrome(json.loads(path.read_text()))
    return _fitting(calls_of(ranges), events, why)


def read_chrome(data: dict[str, Any]) -> tuple[list[tuple[str, int, int]], list[Event]]:
    """Marked ranges and events of a trace that torch.profiler wrote. It gives shared memory in one sum, here taken as dynamic."""
    ranges: list[tuple[str, int, int]] = []
    events: list[Event] = []
    for row in data["traceEvents"]:
        if row.get("ph") != "X":
            continue
        kind, name, more = row.get("cat"), str(row["name"]), row.get("args", {})
        start, end = round(1e3 * row["ts"]), round(1e3 * (row["ts"] + row.get("dur", 0)))
        linked, nbytes = int(more.get("correlation", 0)), int(more.get("bytes", 0))
        if kind == "user_annotation":
            ranges.append((name, start, end))
        elif kind == "kernel":
            grid, block = tuple(more.get("grid", ())), tuple(more.get("block", ()))
            registers, shared = int(more.get("registers per thread", 0)), int(more.get("shared memory", 0))
            events.append(
                Event("kernel", name, start, end, grid, block, registers, 0, shared, correlation=linked)
            )
        elif kind == "gpu_memcpy":  # "Memcpy DtoH (Device -> Pageable)"
            way = next((known for known in COPY_KINDS.values() if known in name.split()), "other")
            events.append(Event("copy", way, start, end, nbytes=nbytes, copy_kind=way, correlation=linked))
        elif kind == "gpu_memset":
            events.append(Event("memset", "memset", start, end, nbytes=nbytes, correlation=linked))
        elif kind in ("cuda_runtime", "cuda_driver"):
            events.append(
                Event("api", api_name(name), start, end, correlation=linked, thread=int(row.get("tid", 0)))
            )
    return ranges, sorted(events, key=lambda event: event.start_ns)


def _fitting(calls: tuple[Call, ...], events: list[Event], note: str = "") -> Trace:
    """A trace of as many of the calls as fit into one message; of a call with very many events one will do."""
    parts = by_call(events, calls)
    while len(parts) > 1 and sum(map(len, parts)) > _MOST_EVENTS:
        parts.pop()
    return Trace("cupti", calls[: len(parts)], tuple(event for part in parts for event in part), note)
