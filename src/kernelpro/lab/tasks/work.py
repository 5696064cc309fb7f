"""The least work a task needs: bytes that must move and operations that must be done, from the operator graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kernelpro.lab import tree
from kernelpro.lab.tasks.reference import Reference


@dataclass(frozen=True)
class Work:
    read_bytes: int
    """Every input and parameter once; zeros of an input (triangles, masks) need not be read."""
    written_bytes: int
    """Every output once."""
    matrix_flops: float
    """Multiply-adds on non-zero operands, times two."""


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products; those with sparse operands by what is not zero."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            count = formula(*args, **(kwargs or {}), out_val=result)
            matrices = [a for a in args if isinstance(a, torch.Tensor) and a.dim() >= 2 and a.is_floating_point()]
            densities = [float(torch.count_nonzero(m)) / max(m.numel(), 1) for m in matrices[-2:]]
            self.flops += count * min(densities, default=1.0)
        return result


def count(reference: Reference, seed: int) -> Work:
    """Work of one call, counted while the reference runs once."""
    form, leaves = reference.inputs(seed)
    model = reference.model()
    counter = _Counter()
    with torch.no_grad(), counter:
        result = model(*tree.unpack(form, leaves))
    outputs: list[torch.Tensor] = []
    tree.pack(result, outputs)
    read = sum(_bytes_that_matter(leaf) for leaf in leaves)
    read += sum(t.numel() * t.element_size() for t in model.state_dict().values())
    written = sum(leaf.numel() * leaf.element_size() for leaf in outputs)
    return Work(read, written, counter.flops)


def _bytes_that_matter(leaf: torch.Tensor) -> int:
    count = int(torch.count_nonzero(leaf)) if leaf.is_floating_point() else leaf.numel()
    return count * leaf.element_size()
