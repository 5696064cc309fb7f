"""The oracle: inputs and right outputs of a task, computed in float64 by the parent alone.

If float64 is not supported or does not fit into memory (memory_plan.py), the reference's own type is used and
`exact` is False. The first run decides this, so that no candidate can make the oracle less exact by using up
the device's memory. If the float64 outputs do not fit into memory at once, `expected` computes them in slices
of the batch (slicing.py). Inputs and outputs are cached in a share of the memory, because all candidates of a
task are verified on the same ones.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from kernelpro.lab import tree
from kernelpro.lab.measure import device_memory
from kernelpro.lab.measure.rounding import MatrixRounding
from kernelpro.lab.measure.slicing import Expected, Outputs, Scale, SlicedOutputs, Slicing, find_slicing
from kernelpro.lab.sandbox.outputs import OutputSpec, describe_structure
from kernelpro.lab.tasks.inputs import AS_GIVEN, transform
from kernelpro.lab.tasks.reference import BITS, Reference, widened_dtype
from kernelpro.records import BadInput

_COMPARED_PIECE = 1 << 25
"""Words that are compared at once. Large pieces are faster, because each comparison waits for the device."""
_WORTH_SECONDS = 0.02
"""If a float64 run with cuDNN takes less, runs without it are not tried."""
_HOST_SLACK = 1.5
"""Free host memory that a float64 run on the host requires, relative to what it takes."""
_TRIALS = 2
"""Float64 runs with and without cuDNN before one is chosen; the first may load libraries."""
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


class _LruCache(Generic[T]):
    """The most recently used values, up to a total of `max_bytes`."""

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
        self._shrink()

    def resize(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped


class Oracle:
    """Inputs by seed and distribution, and the reference's outputs for them."""

    def __init__(self, reference: Reference, cache_bytes: int = 0):
        self.reference = reference
        self.exact = True
        self.float64_error: Exception | None = None
        """Why the first run in float64 failed; None if it did not."""
        self._slicing: Slicing | None = None
        self._slices = 1
        self._rows: slice | None = None
        """The rows of the batch to which this oracle is restricted; see `sample`."""
        self._modifies_inputs = True
        """Whether the reference may modify its inputs. The first run determines it."""
        self._output_count = 1
        self._host_model: torch.nn.Module | None = None
        self._exact_bytes = 0
        self._scales: dict[tuple[int, str], dict[int, Scale]] = {}
        self.structure = "tensor"
        """The structure of the outputs of the last call."""
        self._expected_structure = ""
        """The structure that all calls must have; empty before `output_spec`."""
        self._form = ""
        """The form and shapes that all inputs must have; empty before the first."""
        self.strides: tuple[tuple[int, ...], ...] = ()
        """Of the outputs of the last call."""
        self.shares_input: tuple[bool, ...] = ()
        """For each output of the last call, whether it lies in the memory of an input."""
        self._settled = False
        self._models: dict[torch.dtype | None, torch.nn.Module] = {}
        self._float64_seconds: dict[bool, list[float]] = {True: [], False: []}
        """Seconds of float64 runs on a GPU, with cuDNN (True) and without (False)."""
        self._truths: _LruCache[Outputs] = _LruCache(cache_bytes // 2)
        self._inputs: _LruCache[tuple[tree.TreeSpec, list[torch.Tensor]]] = _LruCache(cache_bytes // 2)
        self._last: tuple[tuple[int, str], tree.TreeSpec, list[torch.Tensor]] | None = None

    def inputs(self, seed: int, distribution: str = AS_GIVEN) -> tuple[tree.TreeSpec, list[torch.Tensor]]:
        """The inputs for a seed and a distribution: their form and tensors.

        The last inputs are kept, because they are used several times in a row. Others are cached, because all
        candidates get the same ones, and drawing them is half of a judgement's time on a CPU.
        """
        key = (seed, distribution)
        if self._last is None or self._last[0] != key:
            inputs, self._last = self._inputs.get(key), None  # frees memory for the next ones
            if inputs is None:
                inputs = self._make_inputs(seed, distribution)
                self._inputs.put(key, inputs, inputs[1])
            self._last = key, *inputs
        return self._last[1], list(self._last[2])

    def _make_inputs(self, seed: int, distribution: str) -> tuple[tree.TreeSpec, list[torch.Tensor]]:
        if given := self._inputs.get((seed, AS_GIVEN)):  # a copy costs a tenth of drawing them again
            return given[0], transform(given[1], distribution, seed)
        form, leaves = self.reference.inputs(seed)
        self._require_same_form(repr((form, [leaf.shape for leaf in leaves])))
        if self._rows is not None and self._slicing:
            leaves = [leaf.clone() for leaf in self._slicing.cut(leaves, self._rows)]
        return form, transform(leaves, distribution, seed, in_place=True)

    def _require_same_form(self, form: str) -> None:
        """All calls share buffers, and a candidate receives the numbers beside its tensors only once."""
        self._form = self._form or form
        if form != self._form:
            raise BadInput(
                f"task {self.reference.task.name}: get_inputs returns other shapes or other numbers with "
                "another seed: make them constants, and random numbers tensors"
            )

    def forget_inputs(self) -> None:
        """Free the last inputs, for another process that needs the memory."""
        self._last = None

    # --- memory --------------------------------------------------------------------------------------

    def set_cache_bytes(self, cache_bytes: int) -> None:
        """Bytes for cached inputs and outputs."""
        self._truths.resize(cache_bytes // 2)
        self._inputs.resize(cache_bytes // 2)

    @property
    def can_slice(self) -> bool:
        """Whether `find_slicing` has found a way to slice the batch."""
        return self._slicing is not None

    def find_slicing(self, seed: int) -> bool:
        """Determine whether outputs can be computed in slices of the batch; `use_slices` requires that."""
        form, leaves = self.inputs(seed)
        self._slicing = find_slicing(lambda cut: self.run(None, form, cut), leaves)
        return self._slicing is not None

    def use_slices(self, slices: int) -> None:
        """Compute expected outputs in this many slices."""
        assert slices == 1 or self._slicing, "find_slicing comes first"
        self._slices = slices

    def use_own_type(self, exact_bytes: int) -> None:
        """Compute expected outputs in the task's own type. `exact_bytes`: what a call in float64 takes."""
        self.exact, self._exact_bytes = False, exact_bytes
        self._models.pop(torch.float64, None)

    def load_exact_model(self) -> None:
        """Create the float64 model now. If that fails, the first call decides what follows."""
        if self.exact and torch.float64 not in self._models:
            with suppress(RuntimeError, TypeError):
                self._models[torch.float64] = self.reference.model(torch.float64)

    def compute_first_slice(self, seed: int) -> None:
        """Compute expected outputs once, or their first slice. This decides whether they are exact."""
        form, leaves = self.inputs(seed)
        expected = self.compute_expected(form, leaves)
        if isinstance(expected, SlicedOutputs):
            expected.compute(expected.ranges[0])

    def retry_float64(self) -> None:
        """After a first run that ran out of memory: let the next run use float64 again."""
        self.exact, self.float64_error = True, None

    def keep_one_model(self) -> None:
        """Free the model in the type that expected outputs do not need."""
        self._models.pop(None if self.exact else torch.float64, None)
        self._host_model = None

    def modified_state(self) -> set[str]:
        """Names of parameters and buffers that the reference itself modifies in its calls."""
        dtype, model = next(iter(self._models.items()))
        before = self.reference.model(dtype).state_dict()
        return {name for name, now in model.state_dict().items() if not same_bits(now, before[name])}

    @property
    def sample_share(self) -> float:
        """The share of the batch that `sample` computes."""
        if self._slices == 1 or not self._slicing:
            return 1.0
        return float(self._slicing.ranges(self._slices)[0].stop / self._slicing.rows)

    def sample(self) -> Oracle:
        """An oracle whose outputs can be computed at once. If this oracle computes slices, the sample is
        restricted to the first slice. Rows are then independent, so that what holds for one slice holds for
        all."""
        if self._slices == 1 or not self._slicing:
            return self
        part = Oracle(self.reference)
        part.exact, part._settled, part._models = self.exact, self._settled, self._models
        part._modifies_inputs, part._slicing = self._modifies_inputs, self._slicing
        part._rows = self._slicing.ranges(self._slices)[0]
        return part

    # --- outputs -------------------------------------------------------------------------------------

    def expected(self, seed: int, distribution: str = AS_GIVEN) -> Expected:
        """The right outputs for the inputs of a seed and a distribution; in slices if they do not fit at
        once."""
        if self._slices == 1:
            return self.truth(seed, distribution)
        outputs = self.compute_expected(*self.inputs(seed, distribution))
        assert isinstance(outputs, SlicedOutputs)
        outputs.scales = self._scales.setdefault((seed, distribution), {})
        return outputs

    def compute_expected(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Expected:
        """As `compute`, in slices if the outputs do not fit at once."""
        return self._in_slices(leaves, lambda cut: self.compute(form, cut))

    def _in_slices(
        self, leaves: list[torch.Tensor], compute: Callable[[list[torch.Tensor]], Outputs]
    ) -> Expected:
        slicing = self._slicing
        if self._slices == 1 or slicing is None:
            return compute(leaves)
        ranges = slicing.ranges(self._slices)
        return SlicedOutputs(ranges, lambda rows: compute(slicing.cut(leaves, rows)), self._output_count)

    def truth(self, seed: int, distribution: str = AS_GIVEN) -> Outputs:
        """The right outputs for the inputs of a seed and a distribution, computed at once."""
        key = (seed, distribution)
        outputs = self._truths.get(key)
        if outputs is None:
            outputs = self.compute(*self.inputs(seed, distribution))
            if self._expected_structure and self.structure != self._expected_structure:
                raise BadInput(
                    f"task {self.reference.task.name}: the reference returns {self._expected_structure} for "
                    f"some inputs and {self.structure} for others: return such numbers as tensors"
                )
            self._truths.put(key, outputs, outputs)
        return outputs

    def compute(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs:
        """Float64 outputs for any inputs; if float64 fails, outputs in the task's own type, without TF32."""
        if self.exact:
            try:
                outputs = self.run(torch.float64, form, leaves)
            except (RuntimeError, TypeError) as error:  # torch has no float64 for it, or no memory
                if self._settled:
                    raise self._explain(error) from error
                self.exact, self.float64_error = False, error  # every verdict notes it
                self._models.clear()
                if self.reference.device == "cuda":
                    torch.cuda.empty_cache()
            else:
                self._settled = True
                return outputs
        return self.run(None, form, leaves)

    def own_error_source(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs | None:
        """Float64 outputs in host memory, for an oracle whose device is too small for float64.

        They are slow, so they serve only to measure the error of the oracle's own outputs. None if the host
        cannot compute them.
        """
        fits = 0 < _HOST_SLACK * self._exact_bytes < device_memory.host_bytes()
        if self.exact or self.reference.device == "cpu" or not fits:
            return None
        try:
            if self._host_model is None:
                self._host_model = self.reference.model(torch.float64, "cpu")
            cast = [leaf.to("cpu", widened_dtype(leaf.dtype, torch.float64)) for leaf in leaves]
            with torch.no_grad():
                result = self._host_model(*tree.unflatten(form, cast))
        except (RuntimeError, TypeError, MemoryError):  # out of memory, or an operator exists only on GPUs
            return None
        outputs: Outputs = []
        tree.flatten(result, outputs)
        return outputs

    def _explain(self, error: Exception) -> Exception:
        """Why a float64 run failed although another succeeded: out of memory, or the reference rejects these
        inputs.

        On a GPU, any error except one of linear algebra means out of memory: libraries report that in
        different words.
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
        """Outputs of the reference with all floating-point tensors in `dtype` (None: in the task's types)."""
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
        copy = self._modifies_inputs
        cast = [leaf.to(widened_dtype(leaf.dtype, dtype), copy=copy) for leaf in leaves]
        result = self._models[dtype](*tree.unflatten(form, cast))
        self.structure = describe_structure(result)
        outputs: Outputs = []
        tree.flatten(result, outputs)
        self.strides = tuple(tuple(output.stride()) for output in outputs)
        given = {leaf.untyped_storage().data_ptr() for leaf in cast}
        self.shares_input = tuple(output.untyped_storage().data_ptr() in given for output in outputs)
        kept = {t.untyped_storage().data_ptr() for t in (*self._models[dtype].state_dict().values(), *leaves)}
        if dtype is None and copy:
            self._modifies_inputs = not all(map(same_bits, cast, leaves))
        del cast, result  # frees memory, which is scarce for large tasks
        return [_own(output.detach(), kept) for output in outputs]

    def _run_fast(self, form: tree.TreeSpec, leaves: list[torch.Tensor]) -> Outputs:
        """Run in float64, with or without cuDNN, whichever is faster."""
        with_it = self._choose_cudnn()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        try:
            torch.backends.cudnn.enabled = with_it
            outputs = self._run(torch.float64, form, leaves)
            torch.cuda.synchronize()
        except RuntimeError:  # out of memory, or an operator that only cuDNN has
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

    def emulate(
        self, bits: int, form: tree.TreeSpec, leaves: list[torch.Tensor]
    ) -> tuple[Expected, MatrixRounding]:
        """The outputs with matrix operands of `bits` significant bits, and the mode that counts products.

        The count is complete once all outputs have been read.
        """
        mode = MatrixRounding(bits, toward_zero=bits == BITS[torch.float16])

        def compute(cut: list[torch.Tensor]) -> Outputs:
            with mode:
                return self.run(torch.float64 if self.exact else None, form, cut)

        return self._in_slices(leaves, compute), mode

    def output_spec(self, seed: int) -> OutputSpec:
        """Shapes, types and structure of the reference's outputs in the task's own types."""
        form, leaves = self.inputs(seed)
        name = self.reference.task.name
        try:
            outputs = self.run(None, form, leaves)
        except SystemExit as error:
            raise BadInput(f"task {name}: the reference called sys.exit({error})") from None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise BadInput(
                f"task {name}: the reference raised {type(error).__name__}: {str(error)[:300]}"
            ) from error
        if not outputs:
            raise BadInput(f"task {name}: the reference returns no tensor")
        for number, leaf in enumerate(outputs):
            if leaf.is_complex():
                raise BadInput(
                    f"task {name}: output {number} is {leaf.dtype}, and complex numbers cannot be compared: "
                    "return torch.view_as_real of it"
                )
        self._output_count = len(outputs)
        tensors = tuple((tuple(leaf.shape), leaf.dtype) for leaf in outputs)
        self._expected_structure = self.structure
        return OutputSpec(tensors, self.structure, self.strides, self.shares_input)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type and shape hold the same bytes; NaN equals NaN."""
    x, y = as_bits(a), as_bits(b)
    return all(
        torch.equal(x[first : first + _COMPARED_PIECE], y[first : first + _COMPARED_PIECE])
        for first in range(0, len(x), _COMPARED_PIECE)
    )


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, as int64 if possible, which is faster to compare."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return flat.view(torch.int64) if flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0 else flat


def _own(output: torch.Tensor, kept: set[int]) -> torch.Tensor:
    """The output in its own memory, which belongs to no parameter or input and to no larger tensor."""
    storage = output.untyped_storage()
    return output.clone() if storage.data_ptr() in kept or storage.nbytes() > output.nbytes else output
