"""Guards around torch's buffers on a GPU: an allocator in the child, through torch's pluggable interface.

It needs no compiler, because torch calls back into Python. Each block is a separate allocation of the driver:
a margin, the buffer, a margin. Blocks that torch frees are reused only after their margins have been checked.
A block that was allocated during graph capture is never reused, because every replay of the graph writes to
it.

The margins of each block hold a pattern of two bytes, of which one differs between blocks, as on a CPU.

Pluggable allocators cannot report free memory, so nothing may ask for it (`avoid_allocator_queries`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import traceback
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.guards import FILLS, MARGIN_BYTES, Damage, Side, changed_bytes

_MAX_FREED_BYTES = 8 << 30
"""If freed blocks that have not been checked exceed this, they are checked at the next allocation: autotuners
allocate gigabytes."""
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass
class _Block:
    base: int
    mapped: int
    nbytes: int = 0
    captured: bool = False
    tag: int = 0
    """The byte of its margins at even addresses."""

    @property
    def start(self) -> int:
        return self.base + MARGIN_BYTES

    @property
    def margins(self) -> dict[Side, int]:
        """The start of each margin."""
        return {"before": self.base, "after": self.start + self.nbytes}


def avoid_allocator_queries() -> None:
    """Disable cuDNN's benchmark mode (`torch.backends.cudnn.benchmark`), and make memory statistics empty.

    Both query the allocator, which raises an error for a pluggable one. A quarter of CUDA-L1's kernels set
    the flag; under guards they get cuDNN's first choice of algorithm.
    """
    from torch.backends import ContextProp

    def ignore(enabled: bool) -> None:
        """Replaces the flag's setter."""

    bindings: Any = torch._C
    settings: Any = type(torch.backends.cudnn)
    bindings._set_cudnn_benchmark = ignore
    settings.benchmark = ContextProp(bindings._get_cudnn_benchmark, ignore)  # type: ignore[no-untyped-call]
    bindings._cuda_memoryStats = lambda device: {}


class CudaGuards:
    """In the child, before CUDA starts: replaces torch's CUDA allocator by one with guards."""

    def __init__(self) -> None:
        avoid_allocator_queries()
        self._byte = FILLS[0]
        self._checked = False
        """Whether all margins were checked and nothing has run since."""
        self._host = torch.empty(MARGIN_BYTES, dtype=torch.uint8)
        self._tags = itertools.cycle(range(0x81, 0x100))
        self._live: dict[int, _Block] = {}
        self._freed: list[_Block] = []
        self._reusable: defaultdict[int, list[_Block]] = defaultdict(list)
        self._found: list[tuple[_Block, Damage]] = []
        self._callbacks = _ALLOCATE(self._allocate), _FREE(self._free)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._callbacks]
        torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(*addresses))
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # makes the context current
        self._stream = gpu.create_stream()
        with contextlib.suppress(gpu.GpuError):  # without it, copies to the host are slower
            gpu.map_host_memory(self._host.data_ptr(), MARGIN_BYTES)

    # --- what torch calls ----------------------------------------------------------------------------

    def _allocate(self, nbytes: int, device: int, stream: int | None) -> int:
        try:
            with gpu.relaxed_capture():
                return self._new_block(nbytes, gpu.is_capturing(stream or 0)).start if nbytes else 0
        except BaseException:  # torch would use the null pointer; the parent reports the last printed line
            os.write(2, f"\nguards: {traceback.format_exc().strip().splitlines()[-1]}\n".encode())
            os._exit(70)

    def _free(self, pointer: int | None, nbytes: int, device: int, stream: int | None) -> None:
        if block := self._live.pop(pointer or 0, None):
            self._freed.append(block)

    # --- blocks --------------------------------------------------------------------------------------

    def _new_block(self, nbytes: int, capturing: bool) -> _Block:
        mapped = -(-(nbytes + 2 * MARGIN_BYTES) // gpu.PAGE_BYTES) * gpu.PAGE_BYTES
        if not capturing and sum(block.mapped for block in self._freed) > _MAX_FREED_BYTES:
            self._recycle()
        if self._reusable[mapped]:
            block = self._reusable[mapped].pop()
        else:
            block = _Block(self._allocate_memory(mapped, capturing), mapped)
        block.nbytes, block.captured, block.tag = nbytes, capturing, next(self._tags)
        gpu.fill_bytes(block.start, self._byte, nbytes, self._stream)
        self._fill_margins(block)
        self._live[block.start] = block
        return block

    def _allocate_memory(self, mapped: int, capturing: bool) -> int:
        try:
            return gpu.allocate(mapped)
        except torch.OutOfMemoryError:
            if capturing:
                raise
        self._recycle()
        for blocks in self._reusable.values():
            while blocks:
                gpu.free(blocks.pop().base)
        return gpu.allocate(mapped)

    def _recycle(self) -> None:
        """Wait for the device, check freed blocks and make them reusable."""
        gpu.synchronize()
        waiting, self._freed = self._freed, []
        for block in waiting:
            self._check(block)
            if block.captured:
                self._freed.append(block)
            else:
                self._reusable[block.mapped].append(block)

    def _check(self, block: _Block) -> None:
        for side, start in block.margins.items():
            gpu.copy_to_host(start, self._host)
            # torch would compare on all cores, which takes long while compilers use them
            pair = (self._byte, block.tag) if start % 2 else (block.tag, self._byte)
            intact = bytearray(pair) * (MARGIN_BYTES // 2)
            address = ctypes.addressof(ctypes.c_char.from_buffer(intact))
            if _memcmp(self._host.data_ptr(), address, MARGIN_BYTES) == 0:
                continue
            changed = changed_bytes(self._host, torch.frombuffer(intact, dtype=torch.uint8))
            assert changed
            end = MARGIN_BYTES - 1
            first, last = changed if side == "after" else (end - changed[1], end - changed[0])
            self._found.append((block, Damage("a scratch buffer", block.nbytes, side, first, last)))
            self._fill_margins(block)

    def _fill_margins(self, block: _Block) -> None:
        for start in block.margins.values():
            odd = start % 2
            gpu.fill_bytes(start, self._byte, odd, self._stream)
            gpu.fill_pairs(start + odd, (block.tag, self._byte), MARGIN_BYTES // 2, self._stream)
        gpu.synchronize_stream(self._stream)

    # --- what the server calls -----------------------------------------------------------------------

    def watch(self) -> None:
        """Do nothing: all of torch's buffers have guards from the start."""

    def fill(self, byte: int) -> None:
        """Fill all margins, and from now on new buffers, with `byte`."""
        if not self._checked:
            self._check_all()
        self._byte, self._checked = byte, False
        for block in (*self._live.values(), *self._freed):
            self._fill_margins(block)

    def _check_all(self) -> None:
        self._recycle()
        for block in self._live.values():
            self._check(block)

    def damages(self, names: Mapping[int, str]) -> list[Damage]:
        """The damages since the last call. `names`: names of live buffers, by address."""
        self._check_all()
        self._checked = True
        damages = []
        for block, damage in self._found:
            inside = range(block.start, block.start + block.nbytes) if block.start in self._live else ()
            name = next((name for at, name in names.items() if at in inside), damage.buffer)
            damages.append(Damage(name, damage.nbytes, damage.side, damage.first, damage.last))
        self._found.clear()
        return damages
