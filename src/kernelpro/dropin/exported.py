"""What an exported file builds from its parts: reference, optimized class, inputs for the self-test."""

from __future__ import annotations

import base64
import importlib
import io
import operator
import pickle
import sys
import types
import zlib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from kernelpro.dropin import module as modules
from kernelpro.dropin.kernel import KernelFactory, load_source
from kernelpro.dropin.operator import SCOPE, leaf_signatures, rebuild
from kernelpro.dropin.spec import KernelSpec, call_with_constants, map_tensors, named_state

Form = str
"""`kernelbench`, `module` or `function`."""


class BundledFinder:
    """Import finder for the modules that an export bundles; installed modules take precedence."""

    def __init__(self, files: dict[str, str]):
        self._texts: dict[str, tuple[str, bool]] = {}
        for path, text in files.items():
            name = path.removesuffix(".py").replace("/", ".")
            is_package = name.endswith(".__init__") or name == "__init__"
            self._texts[name.removesuffix(".__init__")] = text, is_package
        for name in list(self._texts):
            while "." in name:
                name = name.rpartition(".")[0]
                self._texts.setdefault(name, ("", True))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The specification of a bundled module."""
        if name not in self._texts:
            return None
        spec = ModuleSpec(name, self, is_package=self._texts[name][1])  # type: ignore[arg-type]
        spec.origin, spec.has_location = f"<{name}>", True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute the text; inspect and torch.compile can read it."""
        import linecache

        text, name = self._texts[module.__name__][0], f"<{module.__name__}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)


class ExportedKernel:
    """A kernel in a file of its own, or one for each shape of inputs that was judged.

    `home` is the name of the exported module. `specs` and `load_kernels` have an entry for each shape.
    `reference` is the source of the reference, or the name of the module that contains it. `files` are
    modules that the reference imports. `skeleton` is the pickled reference without weights, if its
    constructor does not rebuild it.
    """

    def __init__(
        self,
        home: str,
        specs: list[dict[str, Any]],
        load_kernels: list[Callable[[], Any]],
        reference: str,
        entry: str,
        form: Form,
        files: dict[str, str],
        skeleton: str = "",
        recreate: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
    ):
        self.specs = [KernelSpec(**spec) for spec in specs]
        self._home, self._entry, self._form, self._skeleton = home, entry, form, skeleton
        if files:
            sys.meta_path.append(BundledFinder(files))  # type: ignore[arg-type]
        is_name = "\n" not in reference
        self._reference = (
            importlib.import_module(reference) if is_name else load_source(reference, f"{home}_reference")
        )
        self.factories = tuple(
            KernelFactory(
                spec,
                load,
                self.build_reference,
                (recreate[0], (number,)) if recreate else None,
                recreate[1] if recreate else None,
            )
            for number, (spec, load) in enumerate(zip(self.specs, load_kernels, strict=True))
        )

    @property
    def spec(self) -> KernelSpec:
        """What all shapes share: target, mode, state, settings."""
        return self.specs[0]

    def optimized_class(self) -> Any:
        """The class of optimized modules; its constructor is the reference's."""
        entry = getattr(self._reference, self._entry)
        base = entry if isinstance(entry, type) else modules.function_class(entry)
        cls = modules.optimized_class(base, self.factories)
        cls.__module__ = self._home
        return cls

    def build_reference(self) -> torch.nn.Module:
        """A reference as it was judged, with random weights."""
        entry: Any = getattr(self._reference, self._entry)
        if self._form == "function":
            model = modules.function_class(entry)()
        elif self._skeleton:
            data = zlib.decompress(base64.b64decode(self._skeleton))
            model = _BundleUnpickler(data, self._reference).load().to_empty(device="cpu")
            self._fill_state(model)
        else:
            model = entry(*self.spec.init)
        return model.train(self.spec.training)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _fill_state(self, model: torch.nn.Module) -> None:
        for name, tensor in named_state(model):
            tensor.copy_(_draw(self.spec.ranges.get(name), tuple(tensor.shape), tensor.dtype))

    def inputs(self, seed: int, device: str, number: int = 0) -> Any:
        """New inputs of one judged shape: from `get_inputs`, or drawn in the value ranges of the examples."""
        torch.manual_seed(seed)
        spec = self.specs[number]
        if self._form == "kernelbench":
            with torch.device(device):
                values = call_with_constants(self._reference, self._reference.get_inputs, spec.constants)
            return map_tensors(tuple(values), lambda t: torch.empty_like(t, device=device).copy_(t))
        leaves = []
        for index, (_, shape, dtype, strides) in enumerate(leaf_signatures(spec.inputs)):
            leaf = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)
            leaves.append(leaf.copy_(_draw(spec.ranges.get(str(index)), shape, leaf.dtype)))
        names = [f"leaves[{index}]" for index in range(len(leaves))]
        return eval(rebuild(spec.inputs, names), SCOPE | {"leaves": leaves})


def value_range(tensor: torch.Tensor) -> Any:
    """What `_draw` needs to draw similar values: the distinct values if they are few, else the range."""
    flat = tensor.detach().flatten()
    if not flat.numel() or flat.is_complex():
        return None
    sample = flat[:: max(1, flat.numel() // 4096)].cpu()
    distinct: torch.Tensor = sample.unique()  # type: ignore[no-untyped-call]
    if distinct.numel() <= 4:
        return ["of", *distinct.tolist()]
    finite = sample[sample.isfinite()] if sample.is_floating_point() else sample
    return ["between", finite.min().item(), finite.max().item()] if finite.numel() else None


def _draw(values: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random values that fit the result of `value_range`."""
    if values is None:
        return torch.randn(shape).to(dtype)
    kind, *rest = values
    if kind == "of":
        return torch.tensor(rest)[torch.randint(len(rest), shape)].to(dtype)
    low, high = float(rest[0]), float(rest[1])
    if dtype.is_floating_point:
        return (low + (high - low) * torch.rand(shape, dtype=torch.float64)).to(dtype)
    return torch.randint(int(low), int(high) + 1, shape).to(dtype)


class _BundleUnpickler(pickle.Unpickler):
    """Looks up classes in the module of the reference first."""

    def __init__(self, data: bytes, home: types.ModuleType):
        super().__init__(io.BytesIO(data))
        self._home = home

    def find_class(self, module: str, name: str) -> Any:
        try:
            value = operator.attrgetter(name)(self._home)
        except AttributeError:
            value = None
        is_own = getattr(value, "__module__", None) == self._home.__name__
        return value if is_own else super().find_class(module, name)
