"""Describes a decision for the user: the verdict's reason, its notes and its measurement."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelpro.lab.judge import own_work
from kernelpro.lab.judge.candidate_state import CandidateState
from kernelpro.lab.judge.decision import Decision, Facts
from kernelpro.lab.judge.tolerance import Limit, Tolerance
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.errors import Errors, first_wrong, measure_errors
from kernelpro.lab.measure.rounds import NOISE_SHARE
from kernelpro.lab.measure.slicing import Expected
from kernelpro.lab.measure.statistics import median_interval
from kernelpro.lab.tasks.inputs import (
    AS_GIVEN,
    EQUAL_ROWS,
    FAR_FROM_ZERO,
    INFINITIES,
    NEGATIVE_INFINITIES,
    ODD_ROWS,
    PADDED_ROWS,
)
from kernelpro.records import Measurement

_NOTED_SHARE = 0.10
"""A note explains a widened interval only if the doubt exceeds this share of the candidate's time."""
_COMPARED = {"yes": "faster than", "no": "slower than", "unclear": "not clearly different from"}
_NOTED_COMPILE_SECONDS = 1.0
_INPUTS = {
    "x3": "inputs multiplied by 3",
    "x0.01": "inputs multiplied by 0.01",
    "negated": "negated inputs",
    "spikes": "inputs with spikes (a few values multiplied by up to 2^17)",
    "mild spikes": "inputs with mild spikes (a few values multiplied by up to 2^6)",
    ODD_ROWS: "inputs with odd rows (constant rows, and rows with a large offset)",
    FAR_FROM_ZERO: "inputs far from zero (a large offset is added to all values)",
    PADDED_ROWS: "inputs with padded rows (zero rows, and rows that start or end with zeros)",
    EQUAL_ROWS: "inputs with equal rows (all rows of a matrix are its first one, multiplied by 16)",
    INFINITIES: "inputs with infinities",
    NEGATIVE_INFINITIES: "inputs with negative infinities",
}
"""The distributions in words."""


def describe_inputs(distribution: str) -> str:
    """The inputs of a distribution, in words."""
    return _INPUTS.get(distribution, f"inputs {distribution}")


def reason(decision: Decision, facts: Facts) -> str:
    """The reason of a verdict that passed."""
    baseline, ratio = min(decision.speedup.items(), key=lambda item: item[1].value)
    no_own_work = facts.own_share is not None and facts.own_share < own_work.DECOY_SHARE
    suffix = "; no time is spent in kernels of its own" if no_own_work else ""
    return f"correct; {_COMPARED[decision.faster]} {baseline} ({ratio.value:.2f}x){suffix}"


def wrong_output(outputs: Expected, truth: Expected, errors: Errors, limit: Limit) -> str:
    """Why an output is wrong: its errors and limits, its worst element and its first wrong element."""
    index, limit, errors = limit.deciding(errors)
    overall = f"relative error {errors.norm:.2e} (limit {limit.norm:.2e})"
    largest = f"largest element error {errors.element:.2e} (limit {limit.element:.2e})"
    first = next(
        filter(None, (first_wrong(outputs, truth, bound, index) for bound in (limit.element, limit.norm))), ""
    )
    located = measure_errors(outputs, truth, locate=True)
    worst = located.outputs[index].where if located.outputs else located.where
    return f"{overall}, {largest}; {'; '.join(filter(None, (worst, first)))}"


def fixed_input_notes(numbers: list[int]) -> list[str]:
    """A note on inputs that have the same values in every call."""
    if not numbers:
        return []
    which = ", ".join(map(str, numbers))
    plural, has = ("s", "have") if len(numbers) > 1 else ("", "has")
    return [f"input{plural} {which} {has} the same values in every call: a kernel may rely on them"]


def standing_notes(bench: Bench, notes: list[str], state: CandidateState) -> Iterator[str]:
    """Notes on the candidate and its sandbox, which do not depend on the verdict."""
    yield from notes
    for index in state.restrided:
        yield (
            f"output {index} has other strides than the reference's: a drop-in module copies it, "
            "and the measured times do not include that copy"
        )
    for error in state.build_errors:
        yield f"an extension failed to build, and the kernel runs without it: {error.splitlines()[0]}"
    if state.compile_seconds >= _NOTED_COMPILE_SECONDS:
        stage = "after the build, while the kernel was loaded and called for the first time"
        yield f"compilers ran for {state.compile_seconds:.0f} s {stage}"
    if state.parameters == "by seed":
        yield (
            "the kernel keeps the parameters that its constructor made from the reference's seed: "
            "their names, shapes or values differ from the reference's"
        )
    if given_up := bench.plan.given_up:
        yield given_up
    if not bench.oracle.exact and bench.plan.layout.exact:
        yield "outputs are not compared with float64 results: the reference does not run in float64"
    if bench.launcher.level != "namespaces":
        why = bench.launcher.why_not_stronger or "as requested"
        yield f"weaker sandbox ({bench.launcher.level}): {why}"


def notes(
    decision: Decision, facts: Facts, tolerance: Tolerance, baselines: Baselines, planned_rounds: int
) -> Iterator[str]:
    """Notes on how a verdict that passed was reached."""
    clocks, rounds = decision.clocks, facts.rounds
    if decision.charged:
        if clocks.inconclusive:
            why = "the kernel's clock and the judge's disagree in many calls"
        elif clocks.within_spinning:
            why = "the kernel's threads kept spinning after calls"
        else:
            why = "other work kept this machine busy"
        yield f"{why}: {clocks.charged_ms:.4f} ms per call that its clock did not show are added to its time"
    if decision.reference_operations_ms:
        yield (
            "it needs fewer operations than the reference, whose matrix products take this device at least "
            f"{decision.reference_operations_ms:.4f} ms"
        )
    if len(rounds.samples["candidate"]) + rounds.discarded < planned_rounds:
        yield "timing stopped early: the kernel is clearly slower than the fastest baseline"
    if not tolerance.limits[AS_GIVEN].separates:
        yield "this task cannot distinguish the allowed precision from the next lower one"
    if clocks.max_widen_ms > _NOTED_SHARE * decision.statistics.deciding_ms:
        skipped = f" (no bursts: {facts.burst_skip_reason})" if facts.burst_skip_reason else ""
        yield (
            f"calls are too short for the judge's clock{skipped}: "
            "the interval is widened by the time that the kernel's own clock may have missed"
        )
    if baselines.uses_sealed_calls:
        yield from _prelaunch_notes(decision, facts, baselines)
    for name, why in tolerance.skipped.items():
        if name in (
            ODD_ROWS,
            FAR_FROM_ZERO,
            PADDED_ROWS,
            EQUAL_ROWS,
            INFINITIES,
        ):  # many tasks are not defined there
            continue
        yield f"{describe_inputs(name)} were not used: {why}"


def _prelaunch_notes(decision: Decision, facts: Facts, baselines: Baselines) -> Iterator[str]:
    anchor = decision.anchor
    if anchor not in baselines.prelaunchable:
        yield f"{anchor} cannot be launched ahead of its inputs: all times include launch overhead"
    elif not facts.prelaunch:
        why = (
            "delays the writing of its inputs when it is launched ahead of them"
            if facts.retried_without_prelaunch
            else "cannot be launched ahead of its inputs"
        )
        yield f"the kernel {why}: it is compared with the baseline's time without launch overhead"
    single, queued = (
        float(facts.rounds.log_ratio(anchor, "candidate", kind).median().exp())
        for kind in ("single", "queued")
    )
    if facts.prelaunch and single < NOISE_SHARE * queued:
        yield f"launching the kernel is slow: {single:.2f}x with launch overhead, {queued:.2f}x without"


def measurement(
    decision: Decision, facts: Facts, tolerance: Tolerance, baselines: Baselines, target: str
) -> Measurement:
    """The verdict's `measurement`: rounds, both clocks, and the anchor timed against itself (A/A)."""
    rounds, statistics = facts.rounds, decision.statistics
    walls = torch.tensor([s.wall_ms for s in rounds.calls("candidate", "single")], dtype=torch.float64)
    return Measurement(
        rounds=len(rounds.samples["candidate"]),
        discarded_rounds=rounds.discarded,
        against=decision.anchor,
        own_ms={
            kind: {name: rounds.median_ms(name, kind) for name in rounds.samples} for kind in rounds.kinds
        },
        input_write_ms={name: rounds.input_write_ms(name) for name in rounds.samples},
        hidden_ms=statistics.hidden["single"],
        hidden_sealed_ms=statistics.hidden.get("queued"),
        hidden_burst_ms=statistics.hidden.get("burst"),
        burst_ms=statistics.burst,
        wall_ms=median_interval(walls),
        a_a=baselines.self_comparison(),
        verified_calls=facts.verified_calls,
        distributions=tuple(tolerance.limits),
        sensors=environment.sensors().read() if target == "cuda" else {},
    )
