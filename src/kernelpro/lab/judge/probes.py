"""Probes: can this task be scored at all?

Shortcuts that cost less than the task are tried against the tolerance, on inputs as given: candidates are
timed on those, and one that does the work on other inputs only would look fast. If a shortcut passes, or the
reference is random, a speed-up on this task means nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernelpro.lab.judge.tolerance import Limit, Tolerance
from kernelpro.lab.measure.errors import Errors, measure_errors
from kernelpro.lab.measure.oracle import Oracle, Outputs
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import Work

_SAME, _SAME_INEXACT = 1e-9, 1e-3
"""Two runs in float64 (or less) that differ by more are not the same computation."""
PROBE_SEEDS = 9
"""For one probe. A shortcut that passes on half of all seeds passes on eight of them once in 256 times."""
_MAX_HALVED_INPUTS = 4
_MIN_HALVED_ELEMENTS = 16
"""Inputs with fewer elements are not halved."""
_MAX_READ_RATIO = 1.01
"""A task that only maps one input reads at most so many times its bytes: scales and offsets are small."""
_MAX_MAP_FLOPS = 8.0
"""Operations per element that are hidden by reading and writing it, so that skipping them gains nothing."""
_UNCHANGED_STRIDE = 3
"""One of so many neighbours in memory stays unchanged when a task is tested for being element-wise."""
_CLEAR_EXCESS = 3.0
"""An error of so many times the limit needs no second seed."""
_HALVED_SEEDS = 5


def probe(oracle: Oracle, tolerance: Tolerance, seeds: list[int], work: Work) -> str | None:
    """Why the task cannot be scored, in one line; None when it can. `work`: what a call takes at least.

    A shortcut must pass on all seeds but the first, from which it may learn: a mean over a billion elements
    hardly differs between seeds, and one seed proves nothing.
    """
    first, *others = seeds
    if reason := _randomness(oracle, first):
        return reason
    if AS_GIVEN not in tolerance.limits:
        return f"not scorable: {tolerance.skipped.get(AS_GIVEN, 'no tolerance could be derived')}"
    if not all(_any_finite(leaf) for leaf in oracle.truth(first)):
        return "the reference's output is not finite on the inputs as given"
    limit = tolerance.limits[AS_GIVEN]
    if limit.norm >= 1:
        return "at the allowed precision the reference itself is so far off that zeros pass"
    for shortcut in _shortcuts(oracle, first, work):
        if all(shortcut.passes(oracle, limit, seed) for seed in others):
            return f"{shortcut.name} as an answer to the inputs as given"
    return _skippable(oracle, limit, others)


def _randomness(oracle: Oracle, seed: int) -> str | None:
    """Whether two runs on the same inputs differ, with the random generator in two states.

    The tolerance cannot decide this: it was derived from such runs.
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
"""Makes outputs from the inputs and the shapes of the right outputs; None where it does not apply."""


@dataclass(frozen=True)
class _Shortcut:
    name: str
    outputs: ShortcutFunction
    distributions: tuple[str, ...] = ()
    """Other distributions on which it must pass too."""

    def passes(self, oracle: Oracle, limit: Limit, seed: int) -> bool:
        for distribution in (AS_GIVEN, *self.distributions):
            truth = oracle.truth(seed, distribution)
            outputs = self.outputs(oracle.inputs(seed, distribution)[1], truth)
            if outputs is None or limit.share_used(measure_errors(outputs, truth)) > 1:
                return False
        return True


def _shortcuts(oracle: Oracle, seed: int, work: Work) -> Iterator[_Shortcut]:
    """Outputs that cost less than the task.

    Where the task only maps one input, a map of that is no shortcut, and a copy only if it passes on other
    distributions too: ReLU of positive inputs still has to read and write all of them.
    """
    known_outputs, known_inputs = oracle.truth(seed), oracle.inputs(seed)[1]
    yield _Shortcut("zeros pass", lambda leaves, truth: [torch.zeros_like(leaf) for leaf in truth])
    yield _Shortcut(
        "a constant (the mean) passes",
        lambda leaves, truth: [_filled(leaf, old) for leaf, old in zip(truth, known_outputs, strict=True)],
    )
    yield _Shortcut(
        "the output for other inputs passes",
        lambda leaves, truth: known_outputs if _same_shapes(known_outputs, truth) else None,
    )
    for index, leaf in enumerate(known_inputs):
        if len(known_outputs) == 1 and leaf.is_floating_point() and leaf.numel() == known_outputs[0].numel():
            maps = _only_maps(oracle, seed, index, work)
            also = ("negated", "spikes") if maps else ()
            yield _Shortcut(f"a copy of input {index} passes", _copy(index), also)
            if not maps:
                yield _Shortcut(
                    f"an affine map of input {index} passes", _affine(leaf, known_outputs[0], index)
                )


def _only_maps(oracle: Oracle, seed: int, index: int, work: Work) -> bool:
    """Whether the task only maps each element of this input, in a few operations.

    Then an element's result does not depend on the others. Tested on the task itself: torch's tags miss some
    element-wise operators (hardswish, in 2.13).
    """
    form, leaves = oracle.inputs(seed)
    leaf, (truth,) = leaves[index], oracle.truth(seed)
    few = (
        work.vector_flops <= _MAX_MAP_FLOPS * leaf.numel()
        and work.read_bytes <= _MAX_READ_RATIO * leaf.nbytes
    )
    if not few or work.matrix_flops or truth.shape != leaf.shape:
        return False
    stays = torch.zeros(leaf.shape, dtype=torch.bool, device=leaf.device)
    stays.view(-1)[::_UNCHANGED_STRIDE] = True
    leaves[index] = torch.where(stays, leaf, leaf.flatten().flip(0).view(leaf.shape))
    (changed,) = oracle.compute(form, leaves)
    return torch.equal(torch.where(stays, changed, truth), truth)


def _copy(index: int) -> ShortcutFunction:
    return lambda leaves, truth: [leaves[index].reshape(truth[0].shape)]


def _filled(leaf: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return (
        torch.full_like(leaf, old.double().mean().item())
        if leaf.is_floating_point()
        else torch.full_like(leaf, old.flatten()[0].item())
    )


def _affine(known_input: torch.Tensor, known_output: torch.Tensor, index: int) -> ShortcutFunction:
    """One slope and offset for each position of the last dimension, fitted on known inputs."""
    x, y = known_input.double().reshape(known_output.shape), known_output.double()
    if y.dim() > 1:
        axes = tuple(range(y.dim() - 1))
        mean_x, mean_y = x.mean(axes, keepdim=True), y.mean(axes, keepdim=True)
        slope = ((x - mean_x) * (y - mean_y)).sum(axes, keepdim=True) / (x - mean_x).square().sum(
            axes, keepdim=True
        ).clamp_min(1e-300)
    else:
        mean_x, mean_y = x.mean(), y.mean()
        slope = ((x - mean_x) * (y - mean_y)).sum() / (x - mean_x).square().sum().clamp_min(1e-300)
    return lambda leaves, truth: [slope * (leaves[index].double().reshape(truth[0].shape) - mean_x) + mean_y]


def _same_shapes(a: Outputs, b: Outputs) -> bool:
    return [leaf.shape for leaf in a] == [leaf.shape for leaf in b]


def _skippable(oracle: Oracle, limit: Limit, seeds: list[int]) -> str | None:
    """Whether half of an input can be skipped: replacing it by the other half must show, unless it has no
    effect."""
    leaves = enumerate(oracle.inputs(seeds[0])[1][:_MAX_HALVED_INPUTS])
    large = [
        index
        for index, leaf in leaves
        if leaf.is_floating_point() and leaf.numel() >= _MIN_HALVED_ELEMENTS and leaf.dim()
    ]
    for index in large:
        if _hides_half(oracle, limit, seeds[:_HALVED_SEEDS], index):
            return f"half of input {index} can be skipped without the error leaving the tolerance"
    return None


def _hides_half(oracle: Oracle, limit: Limit, seeds: list[int], index: int) -> bool:
    """Whether the errors of a halved input mostly stay within the limit.

    Where a half mostly exceeds it, a sixteenth does in one of a hundred calls.
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


def _any_finite(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).any())
