"""The kernel as a torch operator: torch.compile and torch.export keep it as one node of their graphs.

The operator takes the inputs and the reference's parameters and buffers. It caches the kernels that it
creates, by the address and version of the parameters.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from typing import Any

import torch

from kernelpro.dropin.kernel import KernelFactory
from kernelpro.dropin.spec import tensors_of

_MAX_KERNELS = 256
"""Kernels in the cache, each for one set of parameters: enough for the layers of a large model."""
_ALIGNMENT = 64
_OPERATORS: dict[str, tuple[str, Any]] = vars(torch.library).setdefault("_kernelpro_operators", {})
"""Signature and operator by name. A name is never registered twice: torch would destroy the first operator,
and graphs that call it would crash. Exported files, which contain this code, share the dictionary."""
SCOPE = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
"""The names that occur in descriptions of plain values."""


def fit_strides(value: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """The tensor, or a copy with these strides."""
    if strides is None or value.layout is not torch.strided or value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def leaf_signatures(expected: Any) -> list[Any]:
    """The signatures of all tensors inside a signature, in order."""
    kind, *rest = expected
    if kind == "tensor":
        return [expected]
    if kind in ("list", "tuple"):
        return [leaf for item in rest[0] for leaf in leaf_signatures(item)]
    return [leaf for _, item in rest[0] for leaf in leaf_signatures(item)] if kind == "dict" else []


def rebuild(expected: Any, leaves: list[str]) -> str:
    """A Python expression that builds a value of this signature from the expressions of its tensors."""
    kind, *rest = expected
    if kind == "tensor":
        return leaves.pop(0)
    if kind in ("list", "tuple"):
        items = "".join(f"{rebuild(item, leaves)}, " for item in rest[0])
        return f"[{items}]" if kind == "list" else f"({items})"
    if kind == "dict":
        return "{" + "".join(f"{key!r}: {rebuild(item, leaves)}, " for key, item in rest[0]) + "}"
    return str(rest[0])


def operator_of(factory: KernelFactory) -> Any:
    """The operator of a kernel: the same for all modules with this kernel and this signature."""
    spec = factory.spec
    stem = re.sub(r"[^0-9a-zA-Z_]", "_", spec.name).lower()
    if not stem[:1].isalpha():  # torch rejects `1_conv2d`, as a problem of KernelBench is called
        stem = f"kernel_{stem}"
    base = f"{stem}_{spec.digest}"
    for number in itertools.count(1):
        name = base if number == 1 else f"{base}_{number}"
        text, known = _OPERATORS.get(name, (repr(spec), None))
        if text != repr(spec):
            continue
        if known is None:
            known = KernelOperator(factory, name)
            _OPERATORS[name] = text, known
        return known.operator


class KernelOperator:
    """`torch.ops.kernelpro.NAME(inputs, state) -> outputs` of a kernel."""

    def __init__(self, factory: KernelFactory, name: str):
        self._factory = factory
        self._kernels: OrderedDict[Any, Any] = OrderedDict()
        spec = factory.spec
        self._outputs = leaf_signatures(spec.outputs)
        inputs = leaf_signatures(spec.inputs)
        text = rebuild(spec.inputs, [f"leaves[{number}]" for number in range(len(inputs))])
        self._arguments = eval(f"lambda leaves: {text}", dict(SCOPE))

        def call(inputs: list[torch.Tensor], state: list[torch.Tensor]) -> list[torch.Tensor]:
            return self._call(inputs, state)

        def fake(inputs: list[torch.Tensor], state: list[torch.Tensor]) -> list[torch.Tensor]:
            device = (inputs or state)[0].device
            return [
                torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)
                for _, shape, dtype, strides in self._outputs
            ]

        schema = "(Tensor[] inputs, Tensor[] state) -> Tensor[]"
        self.operator = torch.library.custom_op(f"kernelpro::{name}", call, mutates_args=(), schema=schema)
        self.operator.register_fake(fake)

    def _call(self, inputs: list[torch.Tensor], state: list[torch.Tensor]) -> list[torch.Tensor]:
        kernel = self._kernel(inputs, state)
        aligned = [t.clone() if t.data_ptr() % _ALIGNMENT else t for t in inputs]
        with torch.no_grad():
            outputs = tensors_of(kernel(*self._arguments(aligned)))
        taken = {t.untyped_storage().data_ptr() for t in (*aligned, *state)}
        results = []
        for output, (_, _, _, strides) in zip(outputs, self._outputs, strict=True):
            fitting = fit_strides(output, strides)
            results.append(fitting.clone() if fitting.untyped_storage().data_ptr() in taken else fitting)
            taken.add(results[-1].untyped_storage().data_ptr())
        return results

    def _kernel(self, inputs: list[torch.Tensor], state: list[torch.Tensor]) -> Any:
        """The cached kernel for these parameters. The cache keeps them alive, at their addresses."""
        device = (inputs or state)[0].device
        key = (device, *(t.data_ptr() for t in state))
        versions = [0 if t.is_inference() else t._version for t in state]
        cached = self._kernels.get(key)
        if cached is None or cached[0] != versions:
            tensors = [t.detach() for t in state]
            named = dict(zip(self._factory.spec.state, tensors, strict=True))
            cached = self._kernels[key] = versions, self._factory.create_with(named, device), tensors
            while len(self._kernels) > _MAX_KERNELS:
                self._kernels.popitem(last=False)
        return cached[1]
