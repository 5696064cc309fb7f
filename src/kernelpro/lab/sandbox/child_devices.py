"""How a child uses a device: it maps inputs, times calls and locates outputs. One class each for CPU and
CUDA."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

from kernelpro.lab import heap, tree
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.completion import ProofKernel, words_of
from kernelpro.lab.sandbox.memory import Slot, dtype_name, open_region

_DEVICE_OVERHEAD_MS, _HOST_OVERHEAD_MS = 0.0013, 0.010
"""How much later an event of the whole context occurs than one of a stream, on an H200: 1.2 to 1.3 us for
calls that were launched ahead; up to 6 us if the device waits for the launching host."""


class CpuDevice:
    """The CPU: calls are synchronous, and the parent reads outputs from this process's memory."""

    name = "cpu"

    def __init__(self, shared_fds: list[int]):
        self._shared_fds = shared_fds

    def map_region(self, index: int, nbytes: int, handle: str) -> torch.Tensor:
        """Map an input region of the parent as a uint8 tensor."""
        return open_region(self.name, nbytes, self._shared_fds[index], handle)

    def supports_gate(self, address: int) -> bool:
        """Whether calls can be launched before their inputs are written."""
        return False

    def synchronize(self) -> None:
        """Do nothing: a CPU call has finished when it returns."""

    def release_memory(self) -> None:
        """Return the free memory of the heap to the system."""
        heap.trim()

    def make_exportable(self) -> bool:
        """Let torch allocate memory that other processes can map; returns whether that changed anything."""
        return False

    def time_calls(self, calls: Callable[[], None]) -> float:
        """Run `calls`; returns their milliseconds by this process's clock."""
        begun = time.perf_counter()
        calls()
        return 1e3 * (time.perf_counter() - begun)

    def launch_behind_gate(
        self, address: int, value: int, calls: Callable[[], list[torch.Tensor]]
    ) -> Callable[[], float]:
        """Never called, because `supports_gate` is False."""
        raise NotImplementedError

    def pace(self, marks: Any) -> None:
        """Do nothing: no calls are queued on a CPU."""

    def locate(self, leaf: torch.Tensor) -> dict[str, Any]:
        """Where an output lies."""
        return {**_describe(leaf), "offset": leaf.data_ptr()}


class CudaDevice:
    """A GPU: calls are queued on a stream, and outputs are exported to the parent by CUDA IPC handles."""

    name = "cuda"

    def __init__(self, shared_fds: list[int]) -> None:
        torch.zeros(1, device="cuda")
        self._start, self._stream_end, self._end = (gpu.Event() for _ in range(3))
        self._all_done = gpu.Event(timing=False)
        self._handles: dict[int, str] = {}
        self._is_exportable = False
        """`make_exportable` was called."""
        try:
            self._proof = ProofKernel(shared_fds[-1]) if shared_fds else None
            self._all_done.record_context()
        except gpu.GpuError:
            self._proof = None

    def map_region(self, index: int, nbytes: int, handle: str) -> torch.Tensor:
        """Map an input region of the parent as a uint8 tensor."""
        return open_region(self.name, nbytes, None, handle)

    def supports_gate(self, address: int) -> bool:
        """Whether a stream can wait for the gate (tested with a value that the gate already has), and calls
        can be proven to be complete."""
        try:
            gpu.stream_wait_value(_current_stream(), address, 0)
        except gpu.GpuError:
            return False
        return self._proof is not None

    def synchronize(self) -> None:
        """Wait for all queued work."""
        torch.cuda.synchronize()

    def release_memory(self) -> None:
        """Free the memory that torch's allocator caches."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def make_exportable(self) -> bool:
        """Turn off expandable segments, which other processes cannot map; returns whether that was new."""
        changed, self._is_exportable = not self._is_exportable, True
        with contextlib.suppress(AttributeError, RuntimeError):
            torch.cuda.memory._set_allocator_settings("expandable_segments:False")  # type: ignore[attr-defined]
        return changed

    def time_calls(self, calls: Callable[[], None]) -> float:
        """Run `calls`; returns their milliseconds by CUDA events, until the work of all streams is done."""
        stream = _current_stream()
        self._start.record(stream)
        calls()
        self._record_end(stream)
        torch.cuda.synchronize()
        return self._elapsed(_HOST_OVERHEAD_MS)

    def launch_behind_gate(
        self, address: int, value: int, calls: Callable[[], list[torch.Tensor]]
    ) -> Callable[[], float]:
        """Launch calls that start when the word at `address` reaches `value`, and the proof of their outputs.

        Returns a function that waits for the calls and returns their milliseconds.
        """
        assert self._proof
        stream = _current_stream()
        gpu.stream_wait_value(stream, address, value)
        self._start.record(stream)
        outputs = calls()
        self._record_end(stream)
        slots = (
            Slot(leaf.data_ptr(), tuple(leaf.shape), leaf.stride(), dtype_name(leaf.dtype))
            for leaf in outputs
            if leaf.is_cuda
        )
        self._proof.launch(stream, value, [place for slot in slots if (place := words_of(slot))])

        def wait() -> float:
            torch.cuda.synchronize()
            return self._elapsed(_DEVICE_OVERHEAD_MS)

        return wait

    def _record_end(self, stream: int) -> None:
        """Record the end of the stream's work and that of the whole context, whose other streams may still
        work."""
        self._stream_end.record(stream)
        if self._proof:
            self._all_done.record_context()
            self._all_done.hold(stream)
        self._end.record(stream)

    def _elapsed(self, overhead_ms: float) -> float:
        return max(
            self._stream_end.milliseconds_since(self._start),
            self._end.milliseconds_since(self._start) - overhead_ms,
        )

    def pace(self, marks: Any) -> None:
        """Wait for the batch before the last one, so that at most two batches are queued."""
        marks.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
        marks[-1].record()
        if len(marks) > 1:
            marks.popleft().synchronize()

    def locate(self, leaf: torch.Tensor) -> dict[str, Any]:
        """Where an output lies, and the handle by which the parent maps its memory."""
        if not leaf.numel():
            return {**_describe(leaf), "offset": leaf.data_ptr()}
        base, allocation = gpu.allocation_range(leaf.data_ptr())[0], gpu.allocation_id(leaf.data_ptr())
        if allocation not in self._handles:
            self._handles[allocation] = gpu.export_ipc_handle(base).hex()
        return {**_describe(leaf), "offset": leaf.data_ptr() - base, "handle": self._handles[allocation]}


ChildDevice = CpuDevice | CudaDevice


def _describe(leaf: torch.Tensor) -> dict[str, Any]:
    return {"shape": leaf.shape, "stride": leaf.stride(), "dtype": dtype_name(leaf.dtype), "handle": ""}


def clone_outputs(value: Any) -> Any:
    """The same structure with every tensor cloned."""
    leaves: list[torch.Tensor] = []
    form = tree.flatten(value, leaves)
    return tree.unflatten(form, [leaf.clone() for leaf in leaves])


def _current_stream() -> int:
    stream: int = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
    return stream
