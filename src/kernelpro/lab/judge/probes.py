"""Probes whether a task can be scored at all.

A probe computes outputs by shortcuts that cost less than the task, and checks them against the tolerance. It
uses inputs as given, because candidates are timed on those: a candidate that does the work only on other
inputs would look fast. If a shortcut passes, or the reference is random, a speed-up on this task means
nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from kernelpro.lab.judge.tolerance import Limit, Tolerance
from kernelpro.lab.measure.errors import Errors, measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.slicing import Outputs
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import Work

_SAME, _SAME_INEXACT = 1e-9, 1e-3
"""If two runs on the same inputs differ by more, the reference is random. The second value is for an oracle
that is not float64."""
PROBE_SEEDS = 9
"""Seeds of one probe. A shortcut that passes on half of all seeds passes on eight of them 1 time in 256."""
_MAX_HALVED_INPUTS = 4
_MIN_HALVED_ELEMENTS = 16
"""Inputs with fewer elements are not halved."""
_MAX_READ_RATIO = 1.01
"""An element-wise task on one input reads at most this many times its bytes: scales and offsets are small."""
_MAX_MAP_FLOPS = 8.0
"""Up to this many operations per element are hidden by reading and writing it, so skipping them gains
nothing."""
_UNCHANGED_STRIDE = 3
"""The test for an element-wise task leaves every third element unchanged."""
_CLEAR_EXCESS = 3.0
"""If an error exceeds the limit by this factor, one seed is enough."""
_HALVED_SEEDS = 5
"""Seeds for the test whether half of an input can be skipped."""
_FEW_VALUES = 64
"""An output with fewer values other than zero may be zero on other seeds."""
_ZERO_SEEDS = 2
"""If the output is zero on so many seeds, there is often nothing to compute, and the error of the few other
values depends on the draw."""
_PIECE = 1 << 23
"""Elements that are summed at once."""


def probe(oracle: Oracle, tolerance: Tolerance, seeds: list[int], work: Work) -> str | None:
    """Why the task cannot be scored, in one line; None if it can. `work`: the least work of a call.

    A shortcut may learn from the first seed. It counts if it passes on all others: one seed proves nothing,
    since a mean over a billion elements, for example, hardly differs between seeds.
    """
    share = oracle.sample_share
    work = replace(
        work,
        read_bytes=int(share * work.read_bytes),
        matrix_flops=share * work.matrix_flops,
        vector_flops=share * work.vector_flops,
    )
    oracle, (first, *others) = oracle.sample(), seeds
    if reason := _randomness(oracle, first):
        return reason
    if AS_GIVEN not in tolerance.limits:
        return f"no tolerance can be derived: {tolerance.skipped.get(AS_GIVEN, 'no inputs as given')}"
    if any(not leaf.numel() for leaf in oracle.truth(first)):
        return "an output of the reference has no elements"
    if not all(_any_finite(leaf) for leaf in oracle.truth(first)):
        return "the reference's output is not finite on the inputs as given"
    limit = tolerance.limits[AS_GIVEN]
    if limit.norm >= 1:
        return "at the allowed precision, the reference itself is so far off that zeros would pass"
    for shortcut in _shortcuts(oracle, first, work):
        if all(shortcut.passes(oracle, limit, seed) for seed in others):
            return f"{shortcut.name} the check on inputs as given: a kernel could skip the work"
    if _values(oracle.truth(first)) < _FEW_VALUES:
        zero = sum(not _values(oracle.truth(seed)) for seed in seeds)
        if zero >= _ZERO_SEEDS:
            return (
                f"the output is zero on {zero} of {len(seeds)} inputs as given: a kernel could skip the work"
            )
    return _skippable(oracle, limit, others)


def fixed_inputs(oracle: Oracle, seeds: list[int]) -> list[int]:
    """Numbers of the inputs that are the same for all seeds and in all distributions: integers and
    booleans."""

    def others(seed: int) -> dict[int, torch.Tensor]:
        leaves = enumerate(oracle.inputs(seed)[1])
        return {index: leaf for index, leaf in leaves if not leaf.is_floating_point()}

    first = others(seeds[0])
    second = others(seeds[1]) if first else {}
    return [index for index, leaf in second.items() if torch.equal(leaf, first[index])]


def _randomness(oracle: Oracle, seed: int) -> str | None:
    """Why the task is random: two runs on the same inputs, with other states of the random generator, differ.

    The tolerance cannot decide whether they do, because it was derived from such runs. None if they agree.
    """
    form, leaves = oracle.inputs(seed)
    runs = []
    for state in (1, 2):
        torch.manual_seed(state)
        runs.append(oracle.compute(form, leaves))
    errors = measure_errors(runs[0], runs[1])
    if errors.norm > (_SAME if oracle.exact else _SAME_INEXACT):
        hint = "; if that is dropout, use `--mode eval`" if oracle.reference.task.mode == "train" else ""
        return (
            f"the reference's output is random: two runs on the same inputs differ by {errors.norm:.1e}{hint}"
        )
    return None


ShortcutFunction = Callable[[list[torch.Tensor], Outputs], Outputs | None]
"""Computes outputs from the inputs and the shapes of the right outputs; returns None if it does not apply."""


@dataclass(frozen=True)
class _Shortcut:
    name: str
    outputs: ShortcutFunction
    distributions: tuple[str, ...] = ()
    """Other distributions on which it must also pass to count."""

    def passes(self, oracle: Oracle, limit: Limit, seed: int) -> bool:
        for distribution in (AS_GIVEN, *self.distributions):
            truth = oracle.truth(seed, distribution)
            outputs = self.outputs(oracle.inputs(seed, distribution)[1], truth)
            if outputs is None or limit.share_used(measure_errors(outputs, truth)) > 1:
                return False
        return True


def _shortcuts(oracle: Oracle, seed: int, work: Work) -> Iterator[_Shortcut]:
    """Ways to compute outputs that cost less than the task.

    If the task itself is element-wise on one input, an affine map of that input is no shortcut. A copy of it
    is one only if it also passes on other distributions: ReLU of positive inputs still has to read and write
    every element.
    """
    known_outputs = oracle.truth(seed)
    elements = [leaf.numel() if leaf.is_floating_point() else -1 for leaf in oracle.inputs(seed)[1]]
    yield _Shortcut("zeros pass", lambda leaves, truth: [_constant(leaf, 0) for leaf in truth])
    yield _Shortcut(
        "a constant (the mean) passes",
        lambda leaves, truth: [_filled(leaf, old) for leaf, old in zip(truth, known_outputs, strict=True)],
    )
    yield _Shortcut(
        "the output for other inputs passes",
        lambda leaves, truth: known_outputs if _same_shapes(known_outputs, truth) else None,
    )
    for index, count in enumerate(elements):
        if len(known_outputs) == 1 and count == known_outputs[0].numel():
            maps = _only_maps(oracle, seed, index, known_outputs[0], work)
            also = ("negated", "spikes") if maps else ()
            yield _Shortcut(f"a copy of input {index} passes", _copy(index), also)
            if not maps:
                # draws the inputs again: large tasks have no memory to keep them
                affine = _affine(oracle.inputs(seed)[1][index], known_outputs[0], index)
                yield _Shortcut(f"an affine map of input {index} passes", affine)


def _only_maps(oracle: Oracle, seed: int, index: int, truth: torch.Tensor, work: Work) -> bool:
    """Whether the task is element-wise on this input, with a few operations per element.

    The test runs the task: it changes other elements and requires that the results of unchanged ones stay the
    same. torch's tags are not used, because they miss some element-wise operators (hardswish, in 2.13).
    """
    form, leaves = oracle.inputs(seed)
    leaf = leaves[index]
    few = (
        work.vector_flops <= _MAX_MAP_FLOPS * leaf.numel()
        and work.read_bytes <= _MAX_READ_RATIO * leaf.nbytes
    )
    if not few or work.matrix_flops or truth.shape != leaf.shape:
        return False
    mixed = leaf.reshape(-1).flip(0)
    mixed[::_UNCHANGED_STRIDE] = leaf.reshape(-1)[::_UNCHANGED_STRIDE]
    leaves[index] = mixed.view(leaf.shape)
    (changed,) = oracle.compute(form, leaves)
    unchanged, expected = (leaf.reshape(-1)[::_UNCHANGED_STRIDE] for leaf in (changed, truth))
    return torch.equal(unchanged, expected)


def _copy(index: int) -> ShortcutFunction:
    return lambda leaves, truth: [leaves[index].reshape(truth[0].shape)]


def _filled(leaf: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return _constant(leaf, old.mean().item() if leaf.is_floating_point() else old.flatten()[0].item())


def _constant(leaf: torch.Tensor, value: float) -> torch.Tensor:
    """A tensor like `leaf` with equal elements, which takes no memory."""
    return torch.full((), value, dtype=leaf.dtype, device=leaf.device).expand(leaf.shape)


def _affine(known_input: torch.Tensor, known_output: torch.Tensor, index: int) -> ShortcutFunction:
    """A slope and an offset for each position of the last dimension, fitted on known inputs and outputs."""
    matrix = known_output.dim() > 1
    columns = known_output.shape[-1] if matrix else 1
    x, y = (leaf.reshape(-1, columns) for leaf in (known_input, known_output))
    step = max(1, _PIECE // columns)

    def total(term: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The sum over rows, a few rows at a time, because float64 copies need much memory."""
        rows = range(0, len(x), step)
        terms = (term(x[first : first + step].double(), y[first : first + step].double()) for first in rows)
        return sum((part.sum(0) for part in terms), torch.zeros((), dtype=torch.float64, device=y.device))

    mean_x, mean_y = total(lambda x, y: x) / len(x), total(lambda x, y: y) / len(x)
    slope = total(lambda x, y: (x - mean_x) * (y - mean_y))
    slope = slope / total(lambda x, y: (x - mean_x).square()).clamp_min(1e-300)

    def outputs(leaves: list[torch.Tensor], truth: Outputs) -> Outputs:
        known = leaves[index].reshape(-1, columns)
        value = torch.empty_like(known)
        for first in range(0, len(known), step):
            part = known[first : first + step].double()
            value[first : first + step] = part.sub_(mean_x).mul_(slope).add_(mean_y)
        return [value.reshape(truth[0].shape)]

    return outputs


def _same_shapes(a: Outputs, b: Outputs) -> bool:
    return [leaf.shape for leaf in a] == [leaf.shape for leaf in b]


def _skippable(oracle: Oracle, limit: Limit, seeds: list[int]) -> str | None:
    """Why half of an input can be skipped: replacing it by the other half changes the output, but the error
    stays within the tolerance. None if that is true of no input."""
    leaves = enumerate(oracle.inputs(seeds[0])[1][:_MAX_HALVED_INPUTS])
    large = [
        index
        for index, leaf in leaves
        if leaf.is_floating_point() and leaf.numel() >= _MIN_HALVED_ELEMENTS and leaf.dim()
    ]
    for index in large:
        if _hides_half(oracle, limit, seeds[:_HALVED_SEEDS], index):
            return f"half of input {index} can be skipped: the error stays within the tolerance"
    return None


def _hides_half(oracle: Oracle, limit: Limit, seeds: list[int], index: int) -> bool:
    """Whether the median error of a halved input stays within the limit.

    If a half mostly exceeds the limit, a sixteenth exceeds it in one of a hundred calls.
    """
    errors: list[Errors] = []
    for seed in seeds:
        errors.append(measure_errors(_outputs_of_half(oracle, seed, index), oracle.truth(seed)))
        if limit.share_used(errors[0]) > _CLEAR_EXCESS:
            return False
    return statistics.median(map(limit.share_used, errors)) <= 1 and any(e.norm > 0 for e in errors)


def _outputs_of_half(oracle: Oracle, seed: int, index: int) -> Outputs:
    form, leaves = oracle.inputs(seed)
    leaves[index] = _replace_half(leaves[index])
    return oracle.compute(form, leaves)


def _replace_half(leaf: torch.Tensor) -> torch.Tensor:
    axis = max(range(leaf.dim()), key=lambda d: leaf.shape[d])
    half = leaf.shape[axis] // 2
    return torch.cat([leaf.narrow(axis, 0, leaf.shape[axis] - half), leaf.narrow(axis, 0, half)], axis)


def _values(outputs: Outputs) -> int:
    """The number of elements that are not zero; counting ends at `_FEW_VALUES`."""
    count = 0
    for piece in (piece for leaf in outputs for piece in torch.split(leaf.reshape(-1), _PIECE)):
        count += int(piece.count_nonzero())
        if count >= _FEW_VALUES:
            break
    return count


def _any_finite(leaf: torch.Tensor) -> bool:
    pieces = torch.split(leaf.reshape(-1), _PIECE)
    return not leaf.is_floating_point() or any(bool(torch.isfinite(piece).any()) for piece in pieces)
