"""The oracle: what the right answer is, computed in float64 by the parent alone.

Where float64 does not fit or is not supported, the reference's own type is used and `exact` is False. That is settled by the first
answer: what a candidate does to the device's memory later cannot make the oracle less exact.
Questions and answers are kept, newest first, within a share of the memory, because every candidate of a task is
asked the same questions by a process that has never seen them.
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
from kernelpro.lab.tasks.inputs import AS_GIVEN, transform
from kernelpro.lab.tasks.reference import BITS, Reference, widened
from kernelpro.lab.watcher import Watcher
from kernelpro.records import BadInput

_PIECE = 1 << 26
"""Elements that are rounded at once: it takes three times their room in float64."""
_SIGNIFICANT = 53
"""Bits of a float64."""
_WORTH_SECONDS = 0.02
"""A float64 run that takes less need not be faster."""
_TRIES = 2
"""The first may load libraries."""
Outputs = list[torch.Tensor]
T = TypeVar("T")


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def rounded(tensor: torch.Tensor, bits: int, toward_zero: bool = False) -> torch.Tensor:
    """The tensor with `bits` significant bits: nearest, or cut off as tensor cores do with the float32 bits they are fed."""
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    flat, made = tensor.flatten(), result.view(-1)
    dropped = _SIGNIFICANT - bits
    for first in range(0, tensor.numel(), _PIECE):
        raw = flat[first : first + _PIECE].to(torch.float64, copy=True).view(torch.int64)
        if dropped and not toward_zero:  # a half, or a little less where the last bit that stays is even
            raw += ((raw >> dropped) & 1).add_((1 << (dropped - 1)) - 1)
        raw &= -(1 << dropped)
        made[first : first + _PIECE] = raw.view(torch.float64)
    return result


class MatrixRounding(Watcher):
    """Rounds the operands of matrix products and convolutions: TF32 or bfloat16 units, emulated anywhere."""

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
            return rounded(value, self._bits, self._toward_zero)
        return value


class _Shelf(Generic[T]):
    """What was used last, up to so many bytes."""

    def __init__(self, most: int):
        self._most, self._held = most, 0
        self._kept: OrderedDict[tuple[int, str], tuple[T, int]] = OrderedDict()

    def get(self, key: tuple[int, str]) -> T | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: tuple[int, str], value: T, tensors: list[torch.Tensor]) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > self._most // 4:
            return
        self._kept[key] = value, size
        self._held += size
        while self._held > self._most:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._held -= dropped


class Oracle:
    def __init__(self, reference: Reference, cache_bytes: int):
        self.reference = reference
        self.exact = True
        self._settled = False
        self._models: dict[torch.dtype | None, torch.nn.Module] = {}
        self._took: dict[bool, list[float]] = {True: [], False: []}
        """Seconds of float64 runs on a GPU with cuDNN, and without."""
        self._answers: _Shelf[Outputs] = _Shelf(cache_bytes // 2)
        self._asked: _Shelf[tuple[tree.Form, list[torch.Tensor]]] = _Shelf(cache_bytes // 2)
        self._last: tuple[tuple[int, str], tree.Form, list[torch.Tensor]] | None = None

    def inputs(self, seed: int, distribution: str = AS_GIVEN) -> tuple[tree.Form, list[torch.Tensor]]:
        """Inputs for a question. The last ones are kept, because each is asked for more than once in a row; others while there is
        room, because every candidate is asked the same: making them is half of a judgement's time on a CPU."""
        key = (seed, distribution)
        if self._last is None or self._last[0] != key:
            found, self._last = self._asked.get(key), None  # room for the next ones
            if found is None:
                form, leaves = self.reference.inputs(seed)
                found = form, transform(leaves, distribution, seed)
                self._asked.put(key, found, found[1])
            self._last = key, *found
        return self._last[1], list(self._last[2])

    def truth(self, seed: int, distribution: str = AS_GIVEN) -> Outputs:
        """The right outputs for these inputs."""
        key = (seed, distribution)
        answer = self._answers.get(key)
        if answer is None:
            answer = self.answer(*self.inputs(seed, distribution))
            self._answers.put(key, answer, answer)
        return answer

    def answer(self, form: tree.Form, leaves: list[torch.Tensor]) -> Outputs:
        """Float64 outputs for any inputs; the task's own type, TF32 off, where float64 cannot be had."""
        if self.exact:
            try:
                outputs = self.run(torch.float64, form, leaves)
            except (
                RuntimeError,
                TypeError,
            ) as error:  # what torch raises where there is no float64, or no memory for it
                if self._settled:
                    raise self._explained(error) from error
                self.exact = False  # and every verdict says so
                self._models.clear()
                if self.reference.device == "cuda":
                    torch.cuda.empty_cache()
            else:
                self._settled = True
                return outputs
        return [leaf.double() if leaf.is_floating_point() else leaf for leaf in self.run(None, form, leaves)]

    def _explained(self, error: Exception) -> Exception:
        """Why float64, which was had before, cannot be had now: memory, or the reference does not like these inputs.

        On a GPU it is memory, in whatever words libraries have for it, unless it is mathematics.
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
            f"task {self.reference.task.name}: the reference raised {what}, in float64, for some of its inputs"
        )

    def run(
        self,
        dtype: torch.dtype | None,
        form: tree.Form,
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

    def _run(self, dtype: torch.dtype | None, form: tree.Form, leaves: list[torch.Tensor]) -> Outputs:
        cast = [leaf.to(widened(leaf.dtype, dtype), copy=True) for leaf in leaves]
        result = self._models[dtype](*tree.unpack(form, cast))
        del cast  # of large tasks every tensor less counts
        outputs: Outputs = []
        tree.pack(result, outputs)
        return [output.detach().clone() for output in outputs]

    def _run_fast(self, form: tree.Form, leaves: list[torch.Tensor]) -> Outputs:
        """In float64, with cuDNN or without: whichever turned out to be faster."""
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
            self._took[False] = [math.inf] * _TRIES
        else:
            self._took[with_it].append(time.perf_counter() - begun)
            return outputs
        finally:
            torch.backends.cudnn.enabled = True
        return self._run_fast(form, leaves)

    def _choose_cudnn(self) -> bool:
        took, other = self._took[True], self._took[False]
        if len(took) < _TRIES or took[-1] < _WORTH_SECONDS:
            return True
        return len(other) >= _TRIES and min(took) <= min(other)

    def emulated(self, bits: int, form: tree.Form, leaves: list[torch.Tensor]) -> tuple[Outputs, int]:
        """The oracle with matrix operands of `bits` significant bits, and how many products there were."""
        mode = MatrixRounding(bits, toward_zero=bits == BITS[torch.float16])
        with mode:
            outputs = self.run(torch.float64 if self.exact else None, form, leaves)
        return outputs, mode.products

    def output_shapes(self, seed: int) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Shapes and types of the outputs as the task gives them."""
        form, leaves = self.inputs(seed)
        try:
            outputs = self.run(None, form, leaves)
        except Exception as error:
            name = self.reference.task.name
            raise BadInput(
                f"task {name}: the reference raised {type(error).__name__}: {str(error)[:300]}"
            ) from error
        if not outputs:
            raise BadInput(f"task {self.reference.task.name}: the reference returns no tensor")
        return tuple((tuple(leaf.shape), leaf.dtype) for leaf in outputs)
