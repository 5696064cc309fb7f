"""Memory that parent and child share, on the GPU (CUDA IPC) and on the CPU (memfd).

The parent writes inputs to regions that it owns: one region per buffer set, each tensor at an aligned offset.
Outputs stay where the candidate put them, and the parent reads them there while the child is frozen.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
from dataclasses import dataclass
from typing import Any

import torch

from kernelpro.lab.sandbox import gpu

_ALIGN = 512
_COMPARED_BYTES = 1 << 28
"""Bytes that are compared at once: a comparison of uint8 takes as many bytes of memory again."""
DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type without `torch.`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in a region."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    def span(self) -> int:
        """Bytes from the first to the last element, inclusive."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (last + 1) * DTYPES[self.dtype].itemsize

    def view(self, raw: torch.Tensor) -> torch.Tensor:
        """The tensor as a view into `raw`, a uint8 tensor over the region."""
        typed = raw[self.offset : self.offset + self.span()].view(DTYPES[self.dtype])
        return typed.as_strided(self.shape, self.stride)

    def to_json(self) -> dict[str, Any]:
        """The slot as plain data."""
        return {"offset": self.offset, "shape": self.shape, "stride": self.stride, "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Slot:
        """The inverse of `to_json`; raises KeyError or TypeError for invalid data."""
        shape, stride = (tuple(map(_parse_int, data[name])) for name in ("shape", "stride"))
        return cls(_parse_int(data["offset"]), shape, stride, str(data["dtype"]))


def _parse_int(value: object) -> int:
    if type(value) is not int:  # `int` would accept 1e300 too
        raise TypeError(f"{value!r} is not an integer")
    return value


def layout(tensors: list[torch.Tensor], margin: int = 0) -> tuple[list[Slot], int]:
    """Slots for tensors in one region, and the region's size. Dense tensors keep their strides, others become
    contiguous.

    `margin`: unused bytes before and after each tensor, a multiple of the alignment.
    """
    slots, offset = [], margin
    for tensor in tensors:
        # preserves strides where the tensor is dense and non-overlapping
        dense = torch.empty_like(tensor, device="meta")
        slot = Slot(offset, tuple(dense.shape), tuple(dense.stride()), dtype_name(dense.dtype))
        slots.append(slot)
        offset += -(-max(slot.span(), 1) // _ALIGN) * _ALIGN + margin
    return slots, max(offset, _ALIGN)


class Region:
    """Shared memory of a fixed size that the parent owns. `fd` is set on the CPU, `handle` on the GPU.

    On a GPU, its last word is the gate: a child's stream can wait for it, and the parent opens it.
    """

    def __init__(self, device: str, nbytes: int):
        self.device, self.nbytes = device, nbytes
        self.fd: int | None = None
        self.handle = ""
        self._has_gate: bool | None = None
        self._gates = 0
        page, gate_bytes = (gpu.PAGE_BYTES, _ALIGN) if device == "cuda" else (mmap.PAGESIZE, 0)
        size = -(-(nbytes + gate_bytes) // page) * page  # memory is shared in whole pages
        self.gate_offset = size - gate_bytes
        if device == "cuda":
            self._pointer = gpu.allocate(size)
            self.handle = gpu.export_ipc_handle(self._pointer).hex()
            self.raw = gpu.as_byte_tensor(self._pointer, size)
        else:
            self.fd = os.memfd_create("kernelpro-inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            fcntl.fcntl(
                self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
            self.raw = _map_populated(self.fd, size)

    def supports_gate(self) -> bool:
        """Whether this device can open the gate. The first call must be in a thread that has used CUDA."""
        if self._has_gate is None:
            try:
                self.open_gate(0)
                self._has_gate = True
            except gpu.GpuError:
                self._has_gate = False
        return self._has_gate

    def next_gate(self) -> int:
        """A value that the gate has never had. Participants that share this memory share its gate."""
        self._gates += 1
        return self._gates

    def open_gate(self, value: int) -> None:
        """Set the gate to `value` after all earlier work of the current stream."""
        gpu.stream_write_value(
            torch.cuda.current_stream().cuda_stream, self._pointer + self.gate_offset, value
        )

    def clear(self) -> None:
        """Overwrite everything, including bytes between inputs, so that the next child sees no message."""
        self.raw.zero_()

    def close(self) -> None:
        """Free the memory."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.raw = torch.empty(0)
            gpu.free(self._pointer)
        elif self.fd is not None:
            self.raw = torch.empty(0, dtype=torch.uint8)
            os.close(self.fd)
            self.fd = None


def open_region(device: str, nbytes: int, fd: int | None, handle: str) -> torch.Tensor:
    """In the child: a uint8 tensor over the parent's region."""
    if device == "cuda":
        mapped: torch.Tensor = gpu.as_byte_tensor(gpu.open_ipc_handle(bytes.fromhex(handle)), nbytes)
        return mapped
    assert fd is not None
    return _map_populated(fd, nbytes)


def _map_populated(fd: int, nbytes: int) -> torch.Tensor:
    """Map a file with all of its pages: no call has page faults, and the pages of every region are allocated
    in the same order. Kernels that walk down columns depend on where pages lie."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    raw: torch.Tensor = torch.frombuffer(mmap.mmap(fd, nbytes, flags=flags), dtype=torch.uint8)
    return raw


class OutputUnreadable(Exception):
    """An output cannot be read at the place that the child claims."""


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)


def _read_elements(pid: int, address: int, offsets: list[int], size: int) -> list[bytes]:
    """`size` bytes at each offset of another process's memory, in one system call."""
    buffer = ctypes.create_string_buffer(size * len(offsets))
    local = _IoVec(ctypes.addressof(buffer), len(buffer))
    remote = (_IoVec * len(offsets))(*[_IoVec(address + offset, size) for offset in offsets])
    if _libc.process_vm_readv(pid, ctypes.byref(local), 1, remote, len(offsets), 0) != len(buffer):
        raise OutputUnreadable(f"output memory cannot be read: {os.strerror(ctypes.get_errno())}")
    return [buffer.raw[first : first + size] for first in range(0, len(buffer), size)]


def _read_process(pid: int, address: int, into: int, nbytes: int) -> None:
    """Copy memory of another process; raises OutputUnreadable if that fails."""
    done = 0
    while done < nbytes:
        local, remote = _IoVec(into + done, nbytes - done), _IoVec(address + done, nbytes - done)
        count = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if count <= 0:
            raise OutputUnreadable(f"output memory cannot be read: {os.strerror(ctypes.get_errno())}")
        done += count


class HostReader:
    """Reads outputs from a child's memory on the CPU."""

    _SAMPLED_ELEMENTS = 64

    def __init__(self, pid: int):
        self._pid = pid

    def sample(self, slot: Slot) -> dict[int, bytes]:
        """A few random elements by offset, read before the freeze, to detect an output that still changes."""
        size, span = DTYPES[slot.dtype].itemsize, slot.span()
        if not span:
            return {}
        offsets = list({random.randrange(span // size) * size for _ in range(self._SAMPLED_ELEMENTS)})
        return dict(zip(offsets, _read_elements(self._pid, slot.offset, offsets, size), strict=True))

    def read(self, slot: Slot, handle: str = "") -> torch.Tensor:
        """The whole output, copied to the parent's memory."""
        raw = torch.empty(slot.span(), dtype=torch.uint8)
        if slot.span():
            _read_process(self._pid, slot.offset, raw.data_ptr(), slot.span())
        return Slot(0, slot.shape, slot.stride, slot.dtype).view(raw)

    def close(self) -> None:
        """Do nothing: there are no mappings."""


class DeviceReader:
    """Reads outputs from device memory that the child exported. Each allocation is mapped once."""

    def __init__(self) -> None:
        self._mappings: dict[str, int] = {}

    def reserve(self, sizes: list[int]) -> None:
        """Let torch's allocator cache enough memory for the outputs, so that no later read waits for the
        driver."""
        _ = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]  # all at the same time

    def read(self, slot: Slot, handle: str) -> torch.Tensor:
        """A copy of the output, complete when this returns: the parent's clock includes it."""
        raw = self._map(slot, handle).clone()
        torch.cuda.synchronize()
        return Slot(0, slot.shape, slot.stride, slot.dtype).view(raw)

    def is_unchanged(self, output: torch.Tensor, slot: Slot, handle: str) -> bool:
        """Whether the memory still holds what `read` returned; compared in pieces, without another copy."""
        raw = torch.empty(0, dtype=torch.uint8, device="cuda").set_(output.untyped_storage())
        now = self._map(slot, handle)
        return all(
            torch.equal(raw[first : first + _COMPARED_BYTES], now[first : first + _COMPARED_BYTES])
            for first in range(0, len(now), _COMPARED_BYTES)
        )

    def _map(self, slot: Slot, handle: str) -> torch.Tensor:
        """The bytes of an output in the child's own memory, without a copy."""
        try:
            if handle not in self._mappings:
                self._mappings[handle] = gpu.open_ipc_handle(bytes.fromhex(handle))
            base, size = gpu.allocation_range(self._mappings[handle])
            if slot.offset < 0 or slot.offset + slot.span() > size:
                raise OutputUnreadable("output lies outside the memory that it names")
            if not slot.span():
                return torch.empty(0, dtype=torch.uint8, device="cuda")
            mapped: torch.Tensor = gpu.as_byte_tensor(base + slot.offset, slot.span())
            return mapped
        except (gpu.GpuError, ValueError) as error:
            raise OutputUnreadable(f"output memory cannot be mapped: {error}") from None

    def close(self) -> None:
        """Release all mappings."""
        for pointer in self._mappings.values():
            gpu.close_ipc_handle(pointer)
        self._mappings.clear()
