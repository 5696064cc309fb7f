"""Probes: can this task be scored at all?

Answers that cost less than the task are tried against the tolerance, on inputs as given: those are what candidates are timed on,
and one that does the work on other inputs only would be called fast. If one passes, or the reference is random, no speed-up on
this task means anything.
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
"""For one probe: what passes for half of the seeds, and so would be found out, passes for eight of them once in 256 times."""
_MOST_INPUTS = 4
_SMALLEST = 16
"""Inputs with fewer elements are not cut in half."""
_SCALED = 1.01
"""Times the bytes of an input that a task reads at most if it only maps that one: scales and offsets are small."""
_FEW = 8.0
"""Operations on an element that hide behind reading and writing it, so that leaving them out gains nothing."""
_APART = 3
"""Of so many neighbours in memory one stays as it is, when a task is asked whether the others matter to it."""
_CLEARLY = 3.0
"""Times the limit: so much of an error needs no second look."""
_LOOKS = 5


def probe(oracle: Oracle, tolerance: Tolerance, seeds: list[int], work: Work) -> str | None:
    """Why the task cannot be scored, in one line; None when it can. `work`: what a call of it takes at least.

    What passes must do so for all seeds but the first, which gives what may be known: a mean over a billion elements hardly differs
    from seed to seed, and one of them proves nothing.
    """
    first, *others = seeds
    if reason := _random(oracle, first):
        return reason
    if AS_GIVEN not in tolerance.limits:
        return f"not scorable: {tolerance.skipped.get(AS_GIVEN, 'no tolerance could be derived')}"
    if not all(_any_finite(leaf) for leaf in oracle.truth(first)):
        return "the reference's output is not finite on the inputs as given"
    limit = tolerance.limits[AS_GIVEN]
    if limit.norm >= 1:
        return "at the allowed precision the reference itself is so far off that zeros pass"
    for stand_in in _shortcuts(oracle, first, work):
        if all(stand_in.passes(oracle, limit, seed) for seed in others):
            return f"{stand_in.name} as an answer to the inputs as given"
    return _skippable(oracle, limit, others)


def _random(oracle: Oracle, seed: int) -> str | None:
    """The same inputs twice, with the generator in two states. The tolerance cannot decide: it was derived from such runs."""
    form, leaves = oracle.inputs(seed)
    answers = []
    for state in (1, 2):
        torch.manual_seed(state)
        answers.append(oracle.answer(form, leaves))
    errors = measure_errors(answers[0], answers[1])
    if errors.norm > (_SAME if oracle.exact else _SAME_INEXACT):
        hint = "; if that is dropout, use `--mode eval`" if oracle.reference.task.mode == "train" else ""
        return (
            f"the reference's output is random: two runs on the same inputs differ by {errors.norm:.1e}{hint}"
        )
    return None


ShortcutFunction = Callable[[list[torch.Tensor], Outputs], Outputs | None]
"""From the inputs and the right outputs' shapes."""


@dataclass(frozen=True)
class _Shortcut:
    name: str
    answer: ShortcutFunction
    also: tuple[str, ...] = ()
    """Other distributions on which it must pass as well."""

    def passes(self, oracle: Oracle, limit: Limit, seed: int) -> bool:
        for distribution in (AS_GIVEN, *self.also):
            truth = oracle.truth(seed, distribution)
            given = self.answer(oracle.inputs(seed, distribution)[1], truth)
            if given is None or limit.share_used(measure_errors(given, truth)) > 1:
                return False
        return True


def _shortcuts(oracle: Oracle, seed: int, work: Work) -> Iterator[_Shortcut]:
    """Answers that cost less than the task. Where it only maps one input, a map of that is no shortcut, and a copy only if that is
    what it is on other inputs too: ReLU of positive ones still has to read and write all of them."""
    known, known_inputs = oracle.truth(seed), oracle.inputs(seed)[1]
    yield _Shortcut("zeros pass", lambda leaves, truth: [torch.zeros_like(leaf) for leaf in truth])
    yield _Shortcut(
        "a constant (the mean) passes",
        lambda leaves, truth: [_filled(leaf, old) for leaf, old in zip(truth, known, strict=True)],
    )
    yield _Shortcut(
        "the output for other inputs passes",
        lambda leaves, truth: known if _same_shapes(known, truth) else None,
    )
    for index, leaf in enumerate(known_inputs):
        if len(known) == 1 and leaf.is_floating_point() and leaf.numel() == known[0].numel():
            maps = _only_maps(oracle, seed, index, work)
            also = ("negated", "spikes") if maps else ()
            yield _Shortcut(f"a copy of input {index} passes", _copy(index), also)
            if not maps:
                yield _Shortcut(f"an affine map of input {index} passes", _affine(leaf, known[0], index))


def _only_maps(oracle: Oracle, seed: int, index: int, work: Work) -> bool:
    """Whether all that the task does is to map each element of this input, in a few operations: an element's result is the same
    whatever the others are. Asked of the task itself: torch's tags leave some operators out (hardswish, in 2.13)."""
    form, leaves = oracle.inputs(seed)
    leaf, (truth,) = leaves[index], oracle.truth(seed)
    few = work.vector_flops <= _FEW * leaf.numel() and work.read_bytes <= _SCALED * leaf.nbytes
    if not few or work.matrix_flops or truth.shape != leaf.shape:
        return False
    stays = torch.zeros(leaf.shape, dtype=torch.bool, device=leaf.device)
    stays.view(-1)[::_APART] = True
    leaves[index] = torch.where(stays, leaf, leaf.flatten().flip(0).view(leaf.shape))
    (found,) = oracle.answer(form, leaves)
    return torch.equal(torch.where(stays, found, truth), truth)


def _copy(index: int) -> ShortcutFunction:
    return lambda leaves, truth: [leaves[index].reshape(truth[0].shape)]


def _filled(leaf: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return (
        torch.full_like(leaf, old.double().mean().item())
        if leaf.is_floating_point()
        else torch.full_like(leaf, old.flatten()[0].item())
    )


def _affine(known_input: torch.Tensor, known_output: torch.Tensor, index: int) -> ShortcutFunction:
    """One slope and offset for each position of the last dimension, fitted on inputs that are known."""
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
    """Half of an input replaced by the other half: it must show, or not matter at all (error exactly zero)."""
    leaves = enumerate(oracle.inputs(seeds[0])[1][:_MOST_INPUTS])
    large = [
        index
        for index, leaf in leaves
        if leaf.is_floating_point() and leaf.numel() >= _SMALLEST and leaf.dim()
    ]
    for index in large:
        if _hides_half(oracle, limit, seeds[:_LOOKS], index):
            return f"half of input {index} can be skipped without the error leaving the tolerance"
    return None


def _hides_half(oracle: Oracle, limit: Limit, seeds: list[int], index: int) -> bool:
    """Whether that mostly stays within the limit. Where a half mostly leaves it, a sixteenth does in one of a hundred calls."""
    found: list[Errors] = []
    for seed in seeds:
        found.append(measure_errors(_answer_to_half(oracle, seed, index), oracle.truth(seed)))
        if limit.share_used(found[0]) > _CLEARLY:
            return False
    return statistics.median(map(limit.share_used, found)) <= 1 and any(errors.norm > 0 for errors in found)


def _answer_to_half(oracle: Oracle, seed: int, index: int) -> Outputs:
    form, leaves = oracle.inputs(seed)
    leaves[index] = _halved(leaves[index])
    return oracle.answer(form, leaves)


def _halved(leaf: torch.Tensor) -> torch.Tensor:
    axis = max(range(leaf.dim()), key=lambda d: leaf.shape[d])
    half = leaf.shape[axis] // 2
    return torch.cat([leaf.narrow(axis, 0, leaf.shape[axis] - half), leaf.narrow(axis, 0, half)], axis)


def _any_finite(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).any())
