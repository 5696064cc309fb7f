"""The CUDA driver and NVML through ctypes: memory shared between processes, clocks, temperature, energy."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

HANDLE_BYTES = 64
PAGE_BYTES = 2 << 20
"""The driver maps and shares memory in pages of 2 MiB, so shared allocations are multiples of that."""
_OUT_OF_MEMORY = 2
_ATTRIBUTE_BUFFER_ID = 7
_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2
_PORTABLE, _DEVICE_MAPPED = 1, 2
_DISABLE_TIMING = 2


class GpuError(RuntimeError):
    """A driver call failed."""


class _Handle(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * HANDLE_BYTES)]


@lru_cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint]
    return library


def _check(code: int, what: str) -> None:
    if code:
        raise GpuError(f"{what} failed with CUDA error {code}")


def allocate(nbytes: int) -> int:
    """Allocate device memory from the driver, in whole pages, outside any allocator. torch's context must be
    current."""
    pointer = ctypes.c_uint64()
    code = _driver().cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes))
    if code == _OUT_OF_MEMORY:
        import torch

        raise torch.OutOfMemoryError(f"the driver has no {nbytes} bytes left")
    _check(code, "cuMemAlloc")
    return pointer.value


def free(pointer: int) -> None:
    """Free memory of `allocate`."""
    _check(_driver().cuMemFree_v2(ctypes.c_uint64(pointer)), "cuMemFree")


def allocation_range(pointer: int) -> tuple[int, int]:
    """Start and size of the allocation that contains a pointer."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    code = _driver().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    _check(code, "cuMemGetAddressRange")
    return base.value, size.value


def allocation_id(pointer: int) -> int:
    """A unique number of the allocation that contains a pointer. A later allocation at the same address has
    another number."""
    number = ctypes.c_uint64()
    code = _driver().cuPointerGetAttribute(
        ctypes.byref(number), _ATTRIBUTE_BUFFER_ID, ctypes.c_uint64(pointer)
    )
    _check(code, "cuPointerGetAttribute")
    return number.value


def export_ipc_handle(base: int) -> bytes:
    """An IPC handle by which another process can map the allocation that starts at `base`."""
    handle = _Handle()
    _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(base)), "cuIpcGetMemHandle")
    return bytes(handle.data)


def open_ipc_handle(handle: bytes) -> int:
    """Map memory that another process has exported."""
    if len(handle) != HANDLE_BYTES:
        raise GpuError(f"a memory handle has {HANDLE_BYTES} bytes, not {len(handle)}")
    structure, pointer = _Handle(), ctypes.c_uint64()
    ctypes.memmove(ctypes.byref(structure), handle, HANDLE_BYTES)
    _check(_driver().cuIpcOpenMemHandle_v2(ctypes.byref(pointer), structure, 1), "cuIpcOpenMemHandle")
    return pointer.value


def close_ipc_handle(pointer: int) -> None:
    """Unmap memory of `open_ipc_handle`."""
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(pointer)), "cuIpcCloseMemHandle")


def synchronize() -> None:
    """Wait for all work of the device."""
    _check(_driver().cuCtxSynchronize(), "cuCtxSynchronize")


def create_stream() -> int:
    """A stream that does not wait for the default stream."""
    stream = ctypes.c_void_p()
    _check(_driver().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "cuStreamCreate")
    return stream.value or 0


def synchronize_stream(stream: int) -> None:
    """Wait for the work of one stream."""
    _check(_driver().cuStreamSynchronize(ctypes.c_void_p(stream)), "cuStreamSynchronize")


def is_capturing(stream: int) -> bool:
    """Whether a graph is being captured from this stream, or a capture elsewhere forbids using it."""
    status = ctypes.c_int()
    return bool(_driver().cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status)) or status.value)


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow this thread to allocate and to synchronize during graph capture."""
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def fill_bytes(pointer: int, byte: int, nbytes: int, stream: int) -> None:
    """Set device memory to one byte, on a stream."""
    code = _driver().cuMemsetD8Async(
        ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)
    )
    _check(code, "cuMemsetD8Async")


def fill_pairs(pointer: int, pair: tuple[int, int], count: int, stream: int) -> None:
    """Set device memory to two bytes, `count` times, on a stream. The address must be even."""
    code = _driver().cuMemsetD16Async(
        ctypes.c_uint64(pointer),
        ctypes.c_ushort(int.from_bytes(pair, "little")),
        ctypes.c_size_t(count),
        ctypes.c_void_p(stream),
    )
    _check(code, "cuMemsetD16Async")


def copy_to_host(pointer: int, host: Any) -> None:
    """Copy device memory to a uint8 tensor of the host."""
    code = _driver().cuMemcpyDtoH_v2(
        ctypes.c_void_p(host.data_ptr()), ctypes.c_uint64(pointer), ctypes.c_size_t(host.numel())
    )
    _check(code, "cuMemcpyDtoH")


def stream_wait_value(stream: int, pointer: int, value: int) -> None:
    """Let later work of the stream wait until the word at `pointer` is at least `value`."""
    _stream_memory_operation("cuStreamWaitValue32_v2", stream, pointer, value)


def stream_write_value(stream: int, pointer: int, value: int) -> None:
    """Write `value` to the word at `pointer` after all earlier work of the stream."""
    _stream_memory_operation("cuStreamWriteValue32_v2", stream, pointer, value)


def _stream_memory_operation(name: str, stream: int, pointer: int, value: int) -> None:
    function = getattr(_driver(), name, None)
    if function is None:
        raise GpuError(f"the driver does not support {name}")
    _check(
        function(ctypes.c_void_p(stream), ctypes.c_uint64(pointer), ctypes.c_uint32(value), ctypes.c_uint(0)),
        name,
    )


def map_host_memory(address: int, nbytes: int) -> int:
    """Make memory of this process visible to the device; returns its address there."""
    pointer = ctypes.c_uint64()
    flags = ctypes.c_uint(_PORTABLE | _DEVICE_MAPPED)
    code = _driver().cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), flags)
    _check(code, "cuMemHostRegister")
    code = _driver().cuMemHostGetDevicePointer_v2(
        ctypes.byref(pointer), ctypes.c_void_p(address), ctypes.c_uint(0)
    )
    _check(code, "cuMemHostGetDevicePointer")
    return pointer.value


def load_function(image: bytes, name: bytes) -> int:
    """Load a kernel from PTX."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
    return function.value or 0


def launch(function: int, threads: int, stream: int, arguments: tuple[Any, ...]) -> None:
    """Launch one block of a kernel; the arguments are ctypes values."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
    dimensions = [ctypes.c_uint(size) for size in (1, 1, 1, threads, 1, 1, 0)]
    code = _driver().cuLaunchKernel(
        ctypes.c_void_p(function), *dimensions, ctypes.c_void_p(stream), pointers, None
    )
    _check(code, "cuLaunchKernel")


class Event:
    """An event of the driver, without torch: a candidate may have replaced torch's."""

    def __init__(self, timing: bool = True):
        self._handle = ctypes.c_void_p()
        flags = ctypes.c_uint(0 if timing else _DISABLE_TIMING)
        _check(_driver().cuEventCreate(ctypes.byref(self._handle), flags), "cuEventCreate")

    def record(self, stream: int) -> None:
        """Record the event after all earlier work of the stream."""
        _check(_driver().cuEventRecord(self._handle, ctypes.c_void_p(stream)), "cuEventRecord")

    def record_context(self) -> None:
        """Record the event after all earlier work of all streams of the current context."""
        context = ctypes.c_void_p()
        _check(_driver().cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        function = getattr(_driver(), "cuCtxRecordEvent", None)
        if function is None:
            raise GpuError("the driver does not support cuCtxRecordEvent")
        _check(function(context, self._handle), "cuCtxRecordEvent")

    def hold(self, stream: int) -> None:
        """Let later work of the stream wait for this event."""
        code = _driver().cuStreamWaitEvent(ctypes.c_void_p(stream), self._handle, ctypes.c_uint(0))
        _check(code, "cuStreamWaitEvent")

    def synchronize(self) -> None:
        """Wait until the event has occurred."""
        _check(_driver().cuEventSynchronize(self._handle), "cuEventSynchronize")

    def milliseconds_since(self, earlier: Event) -> float:
        """The time between two events that have occurred."""
        value = ctypes.c_float()
        code = _driver().cuEventElapsedTime(ctypes.byref(value), earlier._handle, self._handle)
        _check(code, "cuEventElapsedTime")
        return value.value


class _Interface:
    """The part of the CUDA array interface that torch needs to wrap a raw pointer."""

    def __init__(self, pointer: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def as_byte_tensor(pointer: int, nbytes: int) -> Any:
    """A uint8 tensor over raw device memory."""
    import torch

    return torch.as_tensor(_Interface(pointer, nbytes), device="cuda")


class Sensors:
    """NVML readings of one GPU; a reading that the driver does not support is None."""

    _CLOCK_SM, _CLOCK_MEM = 1, 2
    _IDLE_REASON = 0x1

    def __init__(self, pci_bus_id: str):
        self._handle = ctypes.c_void_p()
        try:
            self._nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
            if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByPciBusId_v2(
                pci_bus_id.encode(), ctypes.byref(self._handle)
            ):
                self._nvml = None
        except OSError:
            self._nvml = None

    def _read(self, name: str, kind: Any, *arguments: Any) -> int | None:
        if self._nvml is None:
            return None
        value = kind()
        code = getattr(self._nvml, name)(self._handle, *arguments, ctypes.byref(value))
        return None if code else int(value.value)

    def read(self) -> dict[str, int | None]:
        """SM and memory clock (MHz), temperature (C), power (mW), throttle reasons (bit mask, idle left
        out)."""
        return {
            "sm_mhz": self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, self._CLOCK_SM),
            "memory_mhz": self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, self._CLOCK_MEM),
            "temperature_c": self._read("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            "power_mw": self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint),
            "throttle": self.throttle(),
        }

    def throttle(self) -> int | None:
        """Only the throttle reasons, because every reading takes the driver some time."""
        reasons = self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return None if reasons is None else reasons & ~self._IDLE_REASON

    def busy_percent(self) -> int | None:
        """The share of the last sampling period (up to a second) in which a kernel was running."""
        rates = (ctypes.c_uint * 2)()
        if self._nvml is None or self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            return None
        return int(rates[0])

    def energy_mj(self) -> int | None:
        """Energy of the board since the driver was loaded, in millijoules. It increases in steps."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)

    def max_mhz(self) -> float | None:
        """The highest SM clock."""
        mhz = self._read("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, self._CLOCK_SM)
        return None if mhz is None else float(mhz)

    def power_limit_watts(self) -> float | None:
        """The enforced power limit."""
        milliwatts = self._read("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if milliwatts is None else milliwatts / 1e3

    def driver(self) -> str | None:
        """The driver's version."""
        if self._nvml is None:
            return None
        text = ctypes.create_string_buffer(96)
        return None if self._nvml.nvmlSystemGetDriverVersion(text, 96) else text.value.decode()


HARDWARE_THERMAL = 0x40
SLOWDOWN = 0x8 | 0x20 | HARDWARE_THERMAL | 0x80
"""Throttle reasons that invalidate a timing: hardware slowdown, software and hardware thermal, power brake.
The software power cap is the normal state of a busy datacenter GPU and is only recorded."""
POWER_CAP = 0x4
