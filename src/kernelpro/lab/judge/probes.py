"""Probes: can this task be scored at all?

Answers that need no kernel are tried against the tolerance on every distribution. If one of them
passes everywhere, or the reference is random, no speed-up on this task means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kernelpro.lab.judge.oracle import Oracle, Outputs
from kernelpro.lab.judge.tolerance import Tolerance, measure
from kernelpro.lab.tasks.work import Work

_SAME, _SAME_INEXACT = 1e-9, 1e-3
"""Two runs in float64 (or less) that differ by more are not the same computation."""
_MOST_INPUTS = 4
_SMALLEST = 16
"""Inputs with fewer elements are not cut in half."""
_MORE = 1.01
"""Times the bytes of an input, that a task reads at least if it does more than to map that one: scales and offsets are small."""


def probe(oracle: Oracle, tolerance: Tolerance, seeds: list[int], work: Work) -> str | None:
    """Why the task cannot be scored, in one line; None when it can. `work`: what a call of it takes at least."""
    first, second = seeds
    if reason := _random(oracle, first):
        return reason
    if "as given" not in tolerance.limits:
        return f"not scorable: {tolerance.dropped.get('as given', 'no tolerance could be derived')}"
    if not all(_sound(leaf) for leaf in oracle.truth(first)):
        return "the reference's output is not finite on the inputs as given"
    if (allowed := tolerance.limits["as given"].norm) >= 1:
        return f"at the allowed precision the reference itself is so far off that errors of {allowed:.0%} pass, and so do zeros"
    for name, answer in _stand_ins(oracle, first, work):
        if _passes_everywhere(oracle, tolerance, second, answer):
            return f"{name} passes as an answer on every input distribution"
    return _skippable(oracle, tolerance, second)


def _random(oracle: Oracle, seed: int) -> str | None:
    """The same inputs twice, with the generator in two states. The tolerance cannot decide: it was derived from such runs."""
    form, leaves = oracle.inputs(seed)
    answers = []
    for state in (1, 2):
        torch.manual_seed(state)
        answers.append(oracle.answer(form, leaves))
    errors = measure(answers[0], answers[1])
    if errors.norm > (_SAME if oracle.exact else _SAME_INEXACT):
        return f"the reference's output is random: two runs on the same inputs differ by {errors.norm:.1e}"
    return None


Answer = Callable[[list[torch.Tensor], Outputs], Outputs | None]


def _stand_ins(oracle: Oracle, seed: int, work: Work) -> Iterator[tuple[str, Answer]]:
    """Answers that cost less than the task: each maps the inputs and the right outputs' shapes to an answer."""
    known, known_inputs = oracle.truth(seed), oracle.inputs(seed)[1]
    yield "zeros", lambda leaves, truth: [torch.zeros_like(leaf) for leaf in truth]
    yield "a constant (the mean)", lambda leaves, truth: [_filled(leaf, old) for leaf, old in zip(truth, known, strict=True)]
    yield "the output for other inputs", lambda leaves, truth: known if _same_shapes(known, truth) else None
    for index, leaf in enumerate(known_inputs):
        if len(known) == 1 and leaf.is_floating_point() and leaf.numel() == known[0].numel():
            yield f"a copy of input {index}", lambda leaves, truth, i=index: [leaves[i].reshape(truth[0].shape)]  # type: ignore[misc]
            if work.matrix_flops or work.read_bytes > _MORE * leaf.nbytes:  # else such a map is all that there is to do
                yield f"an affine map of input {index}", _affine(leaf, known[0], index)


def _filled(leaf: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return (
        torch.full_like(leaf, old.double().mean().item())
        if leaf.is_floating_point()
        else torch.full_like(leaf, old.flatten()[0].item())
    )


def _affine(known_input: torch.Tensor, known_output: torch.Tensor, index: int) -> Answer:
    """One slope and offset for each position of the last dimension, fitted on inputs that are known."""
    x, y = known_input.double().reshape(known_output.shape), known_output.double()
    if y.dim() > 1:
        axes = tuple(range(y.dim() - 1))
        mean_x, mean_y = x.mean(axes, keepdim=True), y.mean(axes, keepdim=True)
        slope = ((x - mean_x) * (y - mean_y)).sum(axes, keepdim=True) / (x - mean_x).square().sum(axes, keepdim=True).clamp_min(
            1e-300
        )
    else:
        mean_x, mean_y = x.mean(), y.mean()
        slope = ((x - mean_x) * (y - mean_y)).sum() / (x - mean_x).square().sum().clamp_min(1e-300)
    return lambda leaves, truth: [slope * (leaves[index].double().reshape(truth[0].shape) - mean_x) + mean_y]


def _same_shapes(a: Outputs, b: Outputs) -> bool:
    return [leaf.shape for leaf in a] == [leaf.shape for leaf in b]


def _passes_everywhere(oracle: Oracle, tolerance: Tolerance, seed: int, answer: Answer) -> bool:
    for distribution, limit in tolerance.limits.items():
        truth = oracle.truth(seed, distribution)
        given = answer(oracle.inputs(seed, distribution)[1], truth)
        if given is None or limit.excess(measure(given, truth)) > 1:
            return False
    return True


def _skippable(oracle: Oracle, tolerance: Tolerance, seed: int) -> str | None:
    """Half of an input replaced by the other half: it must show, or not matter at all (error exactly zero)."""
    for index, leaf in enumerate(oracle.inputs(seed)[1][:_MOST_INPUTS]):
        if not leaf.is_floating_point() or leaf.numel() < _SMALLEST or not leaf.dim():
            continue
        worst, exact = 0.0, True
        for distribution, limit in tolerance.limits.items():
            errors = measure(_answer_to_half(oracle, seed, distribution, index), oracle.truth(seed, distribution))
            worst, exact = max(worst, limit.excess(errors)), exact and errors.norm == 0
            if worst > 1:
                break
        if worst <= 1 and not exact:
            return f"half of input {index} can be skipped without the error leaving the tolerance"
    return None


def _answer_to_half(oracle: Oracle, seed: int, distribution: str, index: int) -> Outputs:
    form, leaves = oracle.inputs(seed, distribution)
    leaves[index] = _halved(leaves[index])
    return oracle.answer(form, leaves)


def _halved(leaf: torch.Tensor) -> torch.Tensor:
    axis = max(range(leaf.dim()), key=lambda d: leaf.shape[d])
    half = leaf.shape[axis] // 2
    return torch.cat([leaf.narrow(axis, 0, leaf.shape[axis] - half), leaf.narrow(axis, 0, half)], axis)


def _sound(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).any())
