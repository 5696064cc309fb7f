"""Proof that a call on a GPU is complete, and when: a page of host memory that parent and child share.

A call that is launched ahead of its inputs ends with a small kernel (proof_kernel.py), which runs after all
other work of the child's context. The child's process is stopped meanwhile.

 1. The kernel writes `done`. The parent, which polls the page, immediately writes a random nonce.
 2. The kernel reads the nonce, which selects words of the outputs, and writes those words to the page.
 3. It writes `answered`, and the parent's clock stops. The words must equal those that the parent reads
    later.

So the end of a call is known to a microsecond, without trusting the child: a child that reports `done` before
its output is complete cannot answer, or answers later. On an H200, an empty call is `done` 142 to 145 us
after the gate opens. Most of that is the switch from the parent's context to the child's, and it varies by a
microsecond from call to call. The parent's own first look at the output comes 0.2 ms later, because the
device has to switch contexts, so it would hide any work that finishes in that time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence

import torch

from kernelpro.lab.sandbox import gpu, proof_kernel
from kernelpro.lab.sandbox.memory import Slot

_DONE, _NONCE, _ANSWERED, _PLACES, _VALUES = 0, 64, 128, 512, 4096
_SAMPLES = 2048
_BYTES = _VALUES + 4 * _SAMPLES
MAX_PLACES = 32
"""Most outputs that one proof covers. If there are more, it covers the last ones."""
_WORD = 4
_MAX_WORDS = (1 << 31) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Place = tuple[int, int]
"""Where the words of an output begin, and how many there are."""


def words_of(slot: Slot) -> Place | None:
    """The whole aligned words in an output's memory; None if there are none."""
    first = -(-slot.offset // _WORD) * _WORD
    words = min(_MAX_WORDS, (slot.offset + slot.span() - first) // _WORD)
    return (first, words) if words > 0 else None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix(nonce: int) -> torch.Tensor:
    """The upper 32 bits of splitmix64 for each sample, as the kernel computes them."""
    z = torch.arange(1, _SAMPLES + 1, dtype=torch.int64) * _signed(_GOLDEN) + _signed(nonce)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    z = z ^ ((z >> 31) & ((1 << 33) - 1))
    return (z >> 32) & 0xFFFFFFFF


class CompletionPage:
    """The parent's side of the page."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kernelpro-completion", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _BYTES)
        self._map = mmap.mmap(self.fd, _BYTES)
        self._done, self._answered = (
            ctypes.c_uint32.from_buffer(self._map, place) for place in (_DONE, _ANSWERED)
        )
        self._nonce = ctypes.c_uint64.from_buffer(self._map, _NONCE)

    def reset(self) -> None:
        """Clear the page before a call, so that the kernel waits for a nonce."""
        self._done.value = self._answered.value = self._nonce.value = 0

    def release(self) -> None:
        """Let the kernel finish without a proof."""
        self._nonce.value = 1

    def await_proof(self, value: int, nonce: int, seconds: float) -> float | None:
        """Write the nonce as soon as the kernel is done. Returns the time of the answer by this process's
        clock, or None if there was none in time."""
        done, answered, deadline = self._done, self._answered, time.perf_counter() + seconds
        while done.value != value:
            if time.perf_counter() > deadline:
                return None
        self._nonce.value = nonce
        while answered.value != value:
            if time.perf_counter() > deadline:
                return None
        return time.perf_counter()

    def answer(self) -> torch.Tensor:
        """The words that the kernel wrote."""
        raw = self._map[_VALUES : _VALUES + _WORD * _SAMPLES]
        return torch.frombuffer(bytearray(raw), dtype=torch.int32)

    def close(self) -> None:
        """Unmap the page."""
        if self.fd >= 0:
            del self._done, self._answered, self._nonce
            self._map.close()
            os.close(self.fd)
            self.fd = -1


def is_proven(answer: torch.Tensor, nonce: int, outputs: Sequence[tuple[Slot, torch.Tensor]]) -> bool:
    """Whether the words of an answer equal those of the outputs as the parent has read them.

    `outputs`: where the child claims that each one lies, and the parent's copy of that memory.
    """
    placed = [(place, slot, copy) for slot, copy in outputs if (place := words_of(slot))][-MAX_PLACES:]
    upper = _mix(nonce)
    for index, ((first, words), slot, copy) in enumerate(placed):
        raw = torch.empty(0, dtype=torch.uint8, device=copy.device).set_(copy.untyped_storage())
        skipped = first - slot.offset
        memory = raw[skipped : skipped + _WORD * words]
        memory = (memory.clone() if skipped else memory).view(torch.int32)
        chosen = (upper[index :: len(placed)] * words) >> 32
        if not torch.equal(memory[chosen.to(copy.device)].cpu(), answer[index :: len(placed)]):
            return False
    return True


class ProofKernel:
    """The child's side: maps the page into the device and launches the kernel. Raises GpuError if that is not
    possible."""

    def __init__(self, fd: int):
        self._map = mmap.mmap(fd, _BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._page = gpu.map_host_memory(address, _BYTES)
        self._places = (ctypes.c_uint64 * (2 * MAX_PLACES)).from_buffer(self._map, _PLACES)
        self._function = gpu.load_function(proof_kernel.PTX, proof_kernel.NAME)
        # the first launch loads the kernel and may wait for the device, so it must not happen behind a gate
        ctypes.c_uint64.from_buffer(self._map, _NONCE).value = 1
        self.launch(0, 0, [])
        torch.cuda.synchronize()

    def launch(self, stream: int, value: int, places: Sequence[Place]) -> None:
        """Queue the kernel behind all earlier work of the stream."""
        count = len(places[-MAX_PLACES:])
        for index, (first, words) in enumerate(places[-MAX_PLACES:]):
            self._places[2 * index], self._places[2 * index + 1] = first, words
        arguments = (ctypes.c_uint64(self._page), ctypes.c_uint32(value), ctypes.c_uint32(count))
        gpu.launch(self._function, proof_kernel.THREADS, stream, arguments)
