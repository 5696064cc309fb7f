"""The oracle: inputs and right outputs of a task, computed in float64 by the parent alone.

Where float64 does not fit or is not supported, the reference's own type is used and `exact` is False. The
first run decides that: what a candidate does to the device's memory later cannot make the oracle less exact.
Inputs and outputs are cached within a share of the memory, because every candidate of a task is verified on
the same ones.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from kernelpro.lab import tree
from kernelpro.lab.operator_mode import OperatorMode
from kernelpro.lab.sandbox.outputs import OutputSpec, describe_structure
from kernelpro.lab.tasks.inputs import AS_GIVEN, transform
from kernelpro.lab.tasks.reference import BITS, Reference, widened_dtype
from kernelpro.records import BadInput

_PIECE = 1 << 26
"""Elements that are rounded at once: rounding needs three times their size in float64."""
_SIGNIFICANT = 53
"""Bits of a float64."""
_WORTH_SECONDS = 0.02
"""A float64 run that takes less is fast enough."""
_TRIALS = 2
"""Runs of each way before one is chosen; the first may load libraries."""
Outputs = list[torch.Tensor]
T = TypeVar("T")


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def round_to_bits(tensor: torch.Tensor, bits: int, toward_zero: bool = False) -> torch.Tensor:
    """The tensor with `bits` significant bits: rounded to nearest, or truncated as tensor cores do with
    float32 operands."""
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    source, target = tensor.flatten(), result.view(-1)
    dropped = _SIGNIFICANT - bits
    for first in range(0, tensor.numel(), _PIECE):
        raw = source[first : first + _PIECE].to(torch.float64, copy=True).view(torch.int64)
        if dropped and not toward_zero:  # add a half, or a little less where the last kept bit is even
            raw += ((raw >> dropped) & 1).add_((1 << (dropped - 1)) - 1)
        raw &= -(1 << dropped)
        target[first : first + _PIECE] = raw.view(torch.float64)
    return result


class MatrixRounding(OperatorMode):
    """Rounds the operands of matrix products and convolutions: emulates TF32 or bfloat16 units on any
    device."""

    _OPERATORS = re.compile(
        r"_?(add|b|badd|addb)?mm|_addmm_activation|(add)?mv|v?dot|linear|.*(conv|rnn|lstm|gru|attention).*"
    )

    def __init__(self, bits: int, toward_zero: bool):
        super().__init__()  # type: ignore[no-untyped-call]
        self._bits, self._toward_zero = bits, toward_zero
        self.products = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[-1]
        if self._OPERATORS.fullmatch(name):
            self.products += 1
            args = torch.utils._pytree.tree_map(self._round, args)
        return function(*args, **(kwargs or {}))

    def _round(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return round_to_bits(value, self._bits, self._toward_zero)
        return value


class _LruCache(Generic[T]):
    """The most recently used values, up to a number of bytes."""

    def __init__(self, max_bytes: int):
        self._max_bytes, self._bytes = max_bytes, 0
        self._entries: OrderedDict[tuple[int, str], tuple[T, int]] = OrderedDict()

    def get(self, key: tuple[int, str]) -> T | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: tuple[int, str], value: T, tensors: list[torch.Tensor]) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > self._max_bytes // 4:
            return
        self._entries[key] = value, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped


class Oracle:
    """Inputs by seed and distribution, and the reference's outputs for them."""

    def __init__(self, reference: Reference, cache_bytes: int):
        self.reference = reference
        self.exact = True
        self._structure = "tensor"
        self._settled = False
        self._models: dict[torch.dtype | None, torch.nn.Module] = {}
        self._float64_seconds: dict[bool, list[float]] = {True: [], False: []}
        """Seconds of float64 runs on a GPU, with cuDNN and without."""
        self._truths: _LruCache[Outputs] = _LruCache(cache_bytes // 2)
        self._inputs: _LruCache[tuple[tree.TreeSpec, list[torch.Tensor]]] = _LruCache(cache_bytes // 2)
        self._last: tuple[tuple[int, str], tree.TreeSpec, list[torch.Tensor]] | None = None

    def inputs(self, seed: int, distribution: str = AS_GIVEN) -> tuple[tree.TreeSpec, list[torch.Tensor]]:
        """The inputs for a seed and a distribution: their form and tensors.

        The last ones are kept, because they are used several times in a row; others are cached, because every
        candidate gets the same: making them is half of a judgement's time on a CPU.
        """
        key = (seed, distribution)
        if self._last is None or self._last[0] != key:
            inputs, self._last = self._inputs.get(key), None  # frees memory for the next ones
            if inputs is None:
                form, leaves = self.reference.inputs(seed)
                inputs = form, transform(leaves, distribution, seed)
                self._inputs.put(key, inputs, inputs[1])
            self._last = key, *inputs
        return self._last[1], list(self._last[2])

    def truth(self, seed: int, distribution: str = AS_GIVEN) -> Outputs:
        """The right outputs for the inputs of a seed and a distribution."""
        key = (seed, distribution)
        outputs = self._truths.get(key)
        if outputs is None:
            outputs = self.compute(*self.inputs(seed, distribution))
            self._truths.put(key, outputs, outputs)
        return outputs

    def compute(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs:
        """Float64 outputs for any inputs; computed in the task's own type, without TF32, where float64
        fails."""
        if self.exact:
            try:
                outputs = self.run(torch.float64, form, leaves)
            except (RuntimeError, TypeError) as error:  # torch has no float64 for it, or no memory
                if self._settled:
                    raise self._explain(error) from error
                self.exact = False  # every verdict notes it
                self._models.clear()
                if self.reference.device == "cuda":
                    torch.cuda.empty_cache()
            else:
                self._settled = True
                return outputs
        return [leaf.double() if leaf.is_floating_point() else leaf for leaf in self.run(None, form, leaves)]

    def _explain(self, error: Exception) -> Exception:
        """Why a float64 run failed that succeeded before: memory, or the reference rejects these inputs.

        On a GPU it is memory, in whatever words libraries report that, unless it is linear algebra.
        """
        full = (
            self.reference.device == "cuda"
            or isinstance(error, torch.OutOfMemoryError)
            or "allocate" in str(error)
        )
        if full and not isinstance(error, LinAlgError):
            return torch.OutOfMemoryError(str(error))
        what = f"{type(error).__name__}: {str(error)[:300]}"
        return BadInput(
            f"task {self.reference.task.name}: the reference raised {what}, in float64, for some inputs"
        )

    def run(
        self,
        dtype: torch.dtype | None,
        form: tree.TreeSpec,
        leaves: list[torch.Tensor],
        tf32_allowed: bool = False,
    ) -> Outputs:
        """The reference with all floating tensors in `dtype` (None: as the task has them)."""
        if dtype not in self._models:
            self._models[dtype] = self.reference.model(dtype)
        with torch.no_grad(), tf32(tf32_allowed):
            if (
                dtype is not torch.float64
                or self.reference.device != "cuda"
                or not torch.backends.cudnn.enabled
            ):
                return self._run(dtype, form, leaves)
            return self._run_fast(form, leaves)

    def _run(self, dtype: torch.dtype | None, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs:
        cast = [leaf.to(widened_dtype(leaf.dtype, dtype), copy=True) for leaf in leaves]
        result = self._models[dtype](*tree.unflatten(form, cast))
        del cast  # frees memory, of which large tasks have little
        self._structure = describe_structure(result)
        outputs: Outputs = []
        tree.flatten(result, outputs)
        return [output.detach().clone() for output in outputs]

    def _run_fast(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs:
        """In float64, with cuDNN or without it, whichever is faster."""
        with_it = self._choose_cudnn()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        try:
            torch.backends.cudnn.enabled = with_it
            outputs = self._run(torch.float64, form, leaves)
            torch.cuda.synchronize()
        except RuntimeError:  # memory, or an operator that only cuDNN has
            if with_it:
                raise
            self._float64_seconds[False] = [math.inf] * _TRIALS
        else:
            self._float64_seconds[with_it].append(time.perf_counter() - begun)
            return outputs
        finally:
            torch.backends.cudnn.enabled = True
        return self._run_fast(form, leaves)

    def _choose_cudnn(self) -> bool:
        took, other = self._float64_seconds[True], self._float64_seconds[False]
        if len(took) < _TRIALS or took[-1] < _WORTH_SECONDS:
            return True
        return len(other) >= _TRIALS and min(took) <= min(other)

    def emulate(self, bits: int, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> tuple[Outputs, int]:
        """The outputs with matrix operands of `bits` significant bits, and the number of matrix products."""
        mode = MatrixRounding(bits, toward_zero=bits == BITS[torch.float16])
        with mode:
            outputs = self.run(torch.float64 if self.exact else None, form, leaves)
        return outputs, mode.products

    def output_spec(self, seed: int) -> OutputSpec:
        """What the reference's outputs look like in the task's own types."""
        form, leaves = self.inputs(seed)
        name = self.reference.task.name
        try:
            outputs = self.run(None, form, leaves)
        except SystemExit as error:
            raise BadInput(f"task {name}: the reference called sys.exit({error})") from None
        except Exception as error:
            raise BadInput(
                f"task {name}: the reference raised {type(error).__name__}: {str(error)[:300]}"
            ) from error
        if not outputs:
            raise BadInput(f"task {name}: the reference returns no tensor")
        return OutputSpec(tuple((tuple(leaf.shape), leaf.dtype) for leaf in outputs), self._structure)
