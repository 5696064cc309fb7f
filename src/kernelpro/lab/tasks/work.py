"""The least work of a task: the bytes that must move and the operations that must run, from its operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from kernelpro.lab import tree
from kernelpro.lab.operator_mode import OperatorMode
from kernelpro.lab.tasks.reads import ReadTracker, count_nonzero, tensors
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Work


@dataclass(frozen=True)
class Operator:
    """One operator call of the reference."""

    name: str
    flops: float
    nbytes: int
    """Bytes of its arguments and results."""


class _WorkCounter(OperatorMode):
    """Counts the FLOPs of matrix products (zeros excluded) and the output elements of all other operators."""

    def __init__(self, reads: ReadTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads = reads
        self.flops = self.elements = 0.0
        self.operators: list[Operator] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            count = formula(*args, **(kwargs or {}), out_val=result)
            matrices = [
                a for a in args if isinstance(a, torch.Tensor) and a.dim() >= 2 and a.is_floating_point()
            ]
            densities = [count_nonzero(m) / max(m.numel(), 1) for m in matrices[-2:]]
            work = count * min(densities, default=1.0)
            self.flops += work
        elif function.is_view:
            return result
        else:
            work = float(sum(t.numel() for t in tensors(result)))
            self.elements += work
        self._reads.record(function, args, kwargs or {}, result)
        touched = sum(t.numel() * t.element_size() for t in (*tensors(args), *tensors(result)))
        self.operators.append(Operator(function._overloadpacket.__name__, work, touched))
        return result


def count(reference: Reference, seed: int) -> tuple[Work, tuple[Operator, ...]]:
    """Run the reference once. Returns the work of the call, and its operators in order, except views."""
    form, leaves = reference.inputs(seed)
    model = reference.model()
    reads = ReadTracker(leaves, list(model.state_dict().values()))
    counter = _WorkCounter(reads)
    with torch.no_grad(), counter:
        result = model(*tree.unflatten(form, leaves))
    outputs: list[torch.Tensor] = []
    tree.flatten(result, outputs)
    read, written = reads.read_bytes(), reads.written_bytes(outputs)
    return Work(read, written, counter.flops, counter.elements), tuple(counter.operators)
