"""The child's side of a device: mapping inputs, timing a call, locating outputs. One class each for CPU and
CUDA."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.memory import dtype_name, open_region


class CpuDevice:
    """Calls are synchronous; outputs stay at an address of this process, which the parent reads."""

    name = "cpu"

    def __init__(self, shared_fds: list[int]):
        self._shared_fds = shared_fds

    def map_region(self, index: int, nbytes: int, handle: str) -> torch.Tensor:
        """The parent's input region as a uint8 tensor."""
        return open_region(self.name, nbytes, self._shared_fds[index], handle)

    def supports_gate(self, address: int) -> bool:
        """Whether calls can be launched before their inputs are written."""
        return False

    def synchronize(self) -> None:
        """Wait for all work; a CPU call has finished when it returns."""

    def time_call(self, call: Callable[[], Any], gated: contextlib.AbstractContextManager[None]) -> Any:
        """The outputs of `call` and the milliseconds that it took by this process's clock."""
        begun = time.perf_counter()
        outputs = call()
        return outputs, 1e3 * (time.perf_counter() - begun)

    def wait_for_gate(self, address: int, value: int) -> None:
        """Unreachable: `supports_gate` is False."""
        raise NotImplementedError

    def pace(self, marks: Any) -> None:
        """Nothing is queued on a CPU."""

    def locate(self, leaf: torch.Tensor) -> dict[str, Any]:
        """Where an output lies."""
        return {**_describe(leaf), "offset": leaf.data_ptr()}


class CudaDevice:
    """Calls are queued on a stream; outputs are exported to the parent by CUDA IPC handles."""

    name = "cuda"

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        self._handles: dict[int, str] = {}

    def map_region(self, index: int, nbytes: int, handle: str) -> torch.Tensor:
        """The parent's input region as a uint8 tensor."""
        return open_region(self.name, nbytes, None, handle)

    def supports_gate(self, address: int) -> bool:
        """Whether a stream can wait for the gate: tried with a value that the gate already has."""
        try:
            self.wait_for_gate(address, 0)
        except gpu.GpuError:
            return False
        return True

    def synchronize(self) -> None:
        """Wait for all queued work."""
        torch.cuda.synchronize()

    def time_call(self, call: Callable[[], Any], gated: contextlib.AbstractContextManager[None]) -> Any:
        """The outputs of `call` and the milliseconds that it took by CUDA events."""
        start, end = self._events
        with gated:
            start.record()
            outputs = call()
            end.record()
        torch.cuda.synchronize()
        return outputs, start.elapsed_time(end)

    def wait_for_gate(self, address: int, value: int) -> None:
        """The current stream does nothing more until the word at `address` has reached `value`."""
        gpu.stream_wait_value(torch.cuda.current_stream().cuda_stream, address, value)

    def pace(self, marks: Any) -> None:
        """At most two batches are queued: waits for the one before the last."""
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
    """The same nested outputs with every tensor cloned."""
    leaves: list[torch.Tensor] = []
    form = tree.flatten(value, leaves)
    return tree.unflatten(form, [leaf.clone() for leaf in leaves])


@contextlib.contextmanager
def behind_gate(
    device: ChildDevice, address: int, value: int, launched: Callable[[], None]
) -> Iterator[None]:
    """Work launched inside starts when the gate opens; `launched` tells the parent that all of it is
    launched.

    Without a `value` the work starts at once.
    """
    if value:
        device.wait_for_gate(address, value)
    yield
    if value:
        launched()
