"""Checks whether a candidate is also right for a batch size that the task does not name.

Hard-coded sizes are the main weakness of generated kernels. So a candidate that passed is called once more
with another batch size, in the process of its guarded calls (memory_safety.py). The verdict reports the
result, but its status does not depend on it: drop-in modules use a kernel only for the judged shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelpro.lab import tree
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.guards import MARGIN_BYTES
from kernelpro.lab.sandbox.memory import Slot, layout
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.lab.tasks.batches import describe_sizes
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import Status

_FLOAT64_RATIO = 4
"""An output in float64 takes at most this many times the bytes of the output in its own type."""


@dataclass(frozen=True)
class UnseenCall:
    """The call with another batch size, prepared once per task."""

    batch: int
    inputs: list[torch.Tensor]
    slots: list[Slot]
    nbytes: int
    """Bytes of an input region that holds the slots with their margins."""
    spec: OutputSpec
    form: tree.TreeSpec
    expected: list[torch.Tensor]
    tolerance: Tolerance

    @property
    def shape(self) -> str:
        """The sizes of the inputs."""
        return describe_sizes(self.inputs)

    def check(self, outputs: list[torch.Tensor]) -> None:
        """Raise CandidateRejected if the outputs are wrong."""
        limit = self.tolerance.limits[AS_GIVEN]
        errors = self.tolerance.measure(outputs, self.expected, lambda: (self.form, self.inputs))
        if limit.share_used(errors) > 1:
            raise CandidateRejected(
                Status.WRONG, f"relative error {errors.norm:.2e} (limit {limit.norm:.2e})"
            )


def prepare_unseen_call(bench: Bench, seed: int, tolerance: Tolerance) -> UnseenCall | None:
    """The call; None if the reference accepts no other batch size, or memory is short.

    Its inputs and outputs stay in memory, beside the cached ones.
    """
    form, leaves = bench.oracle.inputs(seed)
    nbytes = sum(leaf.nbytes for leaf in leaves) + _FLOAT64_RATIO * bench.output_spec.nbytes
    if bench.plan.layout.slices > 1 or nbytes > bench.plan.cache_bytes // 4:
        return None
    resizing = bench.find_resizing(seed)
    if resizing is None:
        return None
    inputs = resizing.apply(leaves)
    slots, nbytes = layout(inputs, MARGIN_BYTES)
    oracle = bench.oracle
    outputs = oracle.run(None, form, inputs)
    tensors = tuple((tuple(leaf.shape), leaf.dtype) for leaf in outputs)
    spec = OutputSpec(tensors, oracle.structure, oracle.strides, oracle.shares_input)
    expected = oracle.compute(form, inputs)
    return UnseenCall(resizing.rows, inputs, slots, nbytes, spec, form, expected, tolerance)
