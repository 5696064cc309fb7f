"""Creates kernels: loads the winner's code, constructs `ModelNew` and gives it a module's parameters."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from kernelpro.dropin.spec import KernelSpec, named_state

_ALIGNMENT = 64


class KernelUnavailable(Exception):
    """The kernel cannot be created here; the message says why."""


def load_source(source: str, name: str) -> types.ModuleType:
    """Execute a source as a module whose text inspect, Triton and torch.compile can read."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__file__ = file_name = f"<{name}>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(True), file_name)
    try:
        exec(compile(source, file_name, "exec", dont_inherit=True), module.__dict__)
    except BaseException:  # Ctrl-C too: no half-executed module stays importable
        del sys.modules[name]
        raise
    return module


class KernelFactory:
    """A winner: its specification, its code, and its reference.

    `load_kernel` returns the class `ModelNew`; it may compile. `build_reference` constructs the reference as
    it was judged, to match the kernel's parameters with the reference's. `recipe` is a function with
    arguments that recreates the factory from a pickle; the function `recreate` recreates a module.
    """

    def __init__(
        self,
        spec: KernelSpec,
        load_kernel: Callable[[], Any],
        build_reference: Callable[[], torch.nn.Module] | None = None,
        recipe: tuple[Callable[..., KernelFactory], tuple[Any, ...]] | None = None,
        recreate: Callable[..., Any] | None = None,
    ):
        self.spec, self.recreate = spec, recreate
        self._load_kernel, self._build_reference = load_kernel, build_reference
        self._recipe = recipe
        self._class: Any = None
        self._names: dict[str, str] | None = None

    def __deepcopy__(self, memo: Any) -> KernelFactory:
        return self

    def __reduce__(self) -> Any:
        if self._recipe is None:
            raise TypeError(f"the kernel of {self.spec.name} cannot be pickled: export it to a file first")
        return self._recipe

    def create(self, module: torch.nn.Module, device: torch.device) -> Any:
        """The kernel with the parameters of a module. Raises KernelUnavailable."""
        state = {name: tensor.detach() for name, tensor in named_state(module)}
        return self.create_with(state, device)

    def create_with(self, state: dict[str, torch.Tensor], device: torch.device) -> Any:
        """The kernel with these parameters and buffers of the reference. Raises KernelUnavailable."""
        try:
            kernel = self._construct().to(device)
            own: dict[str, torch.Tensor] = dict(kernel.named_parameters(remove_duplicate=False))
            own |= dict(kernel.named_buffers(remove_duplicate=False))
            names = self._kernel_names(state, own)
        except KernelUnavailable:
            raise
        except Exception as error:  # the kernel's own code and compilers may raise anything
            raise KernelUnavailable(f"{type(error).__name__}: {str(error)[:500]}") from error
        with torch.no_grad():
            for own_name, name in names.items():
                _assign(kernel, own_name, own[own_name], state[name])
        return kernel

    def _construct(self) -> Any:
        if self._class is None:
            self._class = self._load_kernel()
        kernel: Any = _seeded(lambda: self._class(*self.spec.init))
        if not isinstance(kernel, torch.nn.Module):
            kernel = _Callable(kernel)
        kernel.train(self.spec.training).requires_grad_(False)
        return kernel

    def _kernel_names(self, state: dict[str, Any], own: dict[str, Any]) -> dict[str, str]:
        """The reference's name for each tensor of the kernel that takes its value."""
        fitting = {name for name, t in state.items() if name in own and own[name].shape == t.shape}
        missing = [name for name, t in state.items() if _is_weight(t) and name not in fitting]
        if not missing:
            return {name: name for name in fitting}
        if self._names is None:
            self._names = self._match_by_value(missing)
        return self._names

    def _match_by_value(self, missing: list[str]) -> dict[str, str]:
        """Match parameters with other names in the kernel: the same seed gives both the same values."""
        names = ", ".join(missing)
        if self._build_reference is None:
            raise KernelUnavailable(f"ModelNew does not have the reference's parameters by name: {names}")
        theirs = {name: t for name, t in named_state(_seeded(self._build_reference)) if _is_weight(t)}
        own = {name: t for name, t in named_state(self._construct()) if _is_weight(t)}
        matches: dict[str, str] = {}
        for name, tensor in theirs.items():
            match = next(
                (n for n, t in own.items() if n not in matches and _same(t, tensor)),
                None,
            )
            if match is None:
                raise KernelUnavailable(
                    f"ModelNew does not have the reference's parameters, by name or by value: {name}"
                )
            matches[match] = name
        return matches


class _Callable(torch.nn.Module):
    """A winner that is not a module."""

    def __init__(self, function: Any):
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Whether a kernel must have this tensor. Integer tensors may be missing: many are counters."""
    return tensor.is_floating_point() or tensor.is_complex()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def _assign(kernel: torch.nn.Module, name: str, own: torch.Tensor, value: torch.Tensor) -> None:
    """Share the memory of the reference's parameter if both have the same layout, else copy it."""
    is_alike = own.dtype == value.dtype and own.stride() == value.stride() and own.device == value.device
    if not is_alike or value.is_inference() or value.data_ptr() % _ALIGNMENT:
        own.copy_(value)
        return
    *path, last = name.split(".")
    owner = kernel.get_submodule(".".join(path))
    if last in owner._parameters:
        owner._parameters[last] = torch.nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[last] = value


def _seeded(make: Callable[[], Any]) -> Any:
    """Call `make` under a fixed seed, without changing the random generators."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        return make()
