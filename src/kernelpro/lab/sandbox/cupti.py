"""Device time by kernel, from CUPTI's activity records through ctypes.

torch.profiler reports the same times, but takes four seconds to start; this module takes a fraction of a
second. The fields that it reads have had the same offsets in all kernel records since CUDA 11.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CONCURRENT_KERNEL = 10
_KERNEL_KINDS = (3, 10)
_START, _END, _NAME = 16, 24, 104
_BUFFER_BYTES = 8 << 20

_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class CuptiUnavailable(RuntimeError):
    """CUPTI is missing or fails."""


def _library() -> Any:
    """The CUPTI library that torch has loaded, or one that the loader finds."""
    loaded = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcupti.so" in line
    }
    for name in (*sorted(loaded), "libcupti.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise CuptiUnavailable("libcupti.so was not found")


class KernelTimeRecorder:
    """Records kernels inside `recording`; afterwards `microseconds` holds their times by name."""

    def __init__(self) -> None:
        self._cupti = _library()
        self._buffers: dict[int, Any] = {}
        self.microseconds: dict[str, float] = {}
        self._callbacks = (
            _Requested(self._request),
            _Completed(self._complete),
        )  # must outlive the registration
        self._check(self._cupti.cuptiActivityRegisterCallbacks(*self._callbacks), "register")

    def _check(self, code: int, what: str) -> None:
        if code:
            raise CuptiUnavailable(f"CUPTI: {what} failed with error {code}")

    def _request(self, buffer: Any, size: Any, max_records: Any) -> None:
        # CUPTI needs 8-byte alignment, which create_string_buffer does not guarantee
        memory = (ctypes.c_uint64 * (_BUFFER_BYTES // 8))()
        self._buffers[ctypes.addressof(memory)] = memory
        buffer[0], size[0], max_records[0] = ctypes.addressof(memory), _BUFFER_BYTES, 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        while not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            address = record.value or 0
            if ctypes.c_uint32.from_address(address).value in _KERNEL_KINDS:
                start, end = (
                    ctypes.c_uint64.from_address(address + offset).value for offset in (_START, _END)
                )
                text = ctypes.c_char_p.from_address(address + _NAME).value or b"?"
                name = text.decode(errors="replace")
                self.microseconds[name] = self.microseconds.get(name, 0.0) + (end - start) / 1e3
        self._buffers.pop(buffer, None)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record kernels inside this context."""
        self._check(self._cupti.cuptiActivityEnable(_CONCURRENT_KERNEL), "enable")
        try:
            yield
        finally:
            self._check(self._cupti.cuptiActivityFlushAll(1), "flush")
            self._cupti.cuptiActivityDisable(_CONCURRENT_KERNEL)
