"""Compiles Triton kernels without a GPU, while the GPU measures something else.

The model is called on meta tensors, and its kernels are compiled instead of launched. The first real call
then finds them in Triton's cache. The call on meta tensors ends early if control flow depends on data, or if
the model queries more than the properties of the device; the first real call then compiles the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelpro.lab.languages.triton import CACHE

DeviceProperties = dict[str, int | str]
"""The values of torch.cuda.get_device_properties."""


def device_properties() -> DeviceProperties:
    """The properties of this GPU, for processes without one."""
    device = torch.cuda.get_device_properties(0)
    values = {name: getattr(device, name) for name in dir(device) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, int | str)}


def pretend_device(device: DeviceProperties) -> None:
    """Make torch in this process report that a GPU with these properties is visible."""
    properties = SimpleNamespace(**device)
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_name": properties.name,
    }.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def compile_only(device: DeviceProperties | None) -> None:
    """Give this process an empty Triton cache. With a device, compile kernels instead of launching them."""
    os.environ[CACHE] = tempfile.mkdtemp(prefix="triton-", dir=os.environ[CACHE])
    if not device:
        return
    import triton
    from triton.runtime.jit import JITFunction

    launch: Callable[..., Any] = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        converted = {name: _as_pointer(value) for name, value in named.items()}
        kernel = launch(self, *map(_as_pointer, arguments), grid=grid, warmup=True, **converted)
        with contextlib.suppress(Exception):  # a C compiler or the driver's library is missing
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(kernel.src, kernel.metadata)
        return kernel

    JITFunction.run = run
    triton.runtime.driver.set_active(_CompileOnlyDriver((int(device["major"]), int(device["minor"]))))


def compile_generated_kernels(module: ModuleType) -> None:
    """Compile the kernels of a module that torch.compile wrote, in all configurations of their autotuners.

    Their decorators bypass the function that `compile_only` replaces.
    """
    kernels = [
        value
        for value in vars(module).values()
        if "torch._inductor" in type(value).__module__ and hasattr(value, "precompile")
    ]
    if not kernels:
        return
    with contextlib.suppress(Exception):  # another version of torch: the first real call compiles them
        from torch._inductor.runtime import triton_helpers

        triton_helpers.set_driver_to_gpu = lambda: None  # keep the compile-only driver
        for kernel in kernels:
            kernel.precompile(warm_cache_only=True)


def relocate_cache(cache: Path) -> None:
    """Make a cache from another process valid here: its group files contain absolute paths."""
    for group in cache.glob("*/__grp__*.json"):
        names = json.loads(group.read_text())["child_paths"]
        group.write_text(json.dumps({"child_paths": {name: str(group.with_name(name)) for name in names}}))
    for timings in cache.glob("*/*.autotune.json"):  # not measured: see get_benchmarker
        timings.unlink()


class MetaAsCuda(TorchFunctionMode):
    """In this mode, CUDA tensors are created on `meta`, and meta tensors report that they are on a GPU."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        answer = _CUDA_ANSWERS.get(function)
        if answer and arguments[0].is_meta:
            return answer(arguments[0])
        if function is torch.Tensor.cuda:
            return arguments[0].to("meta")
        named = named or {}
        if function is torch.device:
            return function(*arguments, **named)
        return function(*map(_to_meta, arguments), **{name: _to_meta(value) for name, value in named.items()})


def _address(tensor: Any) -> int:
    """A fake address: the tensor's offset in its storage, so that storages look aligned."""
    return int(tensor.storage_offset() * tensor.element_size())


_CUDA_ANSWERS: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.Tensor.is_cuda.__get__: lambda _: True,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda _: torch.device("cuda", 0),
    torch.Tensor.get_device: lambda _: 0,
    torch.Tensor.data_ptr: _address,
}


def _to_meta(value: Any) -> Any:
    named = isinstance(value, torch.device | str) and str(value).split(":")[0] == "cuda"
    return torch.device("meta") if named else value


class _Pointer:
    """A pointer argument of a Triton kernel."""

    def __init__(self, tensor: torch.Tensor):
        self.dtype, self._address = tensor.dtype, _address(tensor)

    def data_ptr(self) -> int:
        return self._address


def _as_pointer(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_pointer, value))
    return _Pointer(value) if isinstance(value, torch.Tensor) and value.is_meta else value


class _CompileOnlyDriver:
    """A Triton driver that only compiles."""

    def __init__(self, capability: tuple[int, int]):
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 10 * self._capability[0] + self._capability[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """A benchmark that reports the same time for every configuration, so that autotuning compiles all."""

        def once(call: Callable[[], Any], quantiles: Any = (0.5, 0.2, 0.8), **_: Any) -> list[float]:
            call()
            return [1.0] * len(quantiles)

        return once
