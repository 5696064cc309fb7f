"""A decision in words and as plain data: the verdict's reason, its notes and its measurement."""

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
from kernelpro.lab.tasks.inputs import AS_GIVEN, INFINITIES, ODD_ROWS, PADDED_ROWS
from kernelpro.records import Measurement

_NOTED_SHARE = 0.10
"""Below this share of the candidate's time, a widened interval needs no explanation."""
_COMPARED = {"yes": "faster than", "no": "slower than", "unclear": "not clearly different from"}
_NOTED_COMPILE_SECONDS = 1.0


def reason(decision: Decision, facts: Facts) -> str:
    """The reason of a verdict that passed."""
    ratio = decision.speedup[decision.anchor].value
    no_own_work = facts.own_share is not None and facts.own_share < own_work.DECOY_SHARE
    suffix = "; none of it in its own kernels" if no_own_work else ""
    return f"correct; {_COMPARED[decision.faster]} {decision.anchor} ({ratio:.2f}x){suffix}"


def wrong_output(outputs: Expected, truth: Expected, errors: Errors, limit: Limit) -> str:
    """How an output is wrong: its errors, the worst element and the first wrong one."""
    index, limit, errors = limit.deciding(errors)
    overall = f"relative error {errors.norm:.2e} (limit {limit.norm:.2e})"
    largest = f"largest {errors.element:.2e} (limit {limit.element:.2e})"
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
    plural = "s" if len(numbers) > 1 else ""
    return [f"input{plural} {which}: the same values in every call, on which a kernel may rely"]


def standing_notes(bench: Bench, notes: list[str], state: CandidateState) -> Iterator[str]:
    """Notes that hold whatever the verdict."""
    yield from notes
    for index in state.restrided:
        yield (
            f"output {index} has other strides than the reference's: a drop-in module copies it, "
            "which no time here includes"
        )
    if state.compile_seconds >= _NOTED_COMPILE_SECONDS:
        stage = "after the build, while it was loaded or first called"
        yield f"compilers ran for {state.compile_seconds:.0f} s {stage}"
    if state.parameters == "by seed":
        yield "parameters were built from the reference's seed: names, shapes or values differ"
    if given_up := bench.plan.given_up:
        yield given_up
    if not bench.oracle.exact and bench.plan.layout.exact:
        yield "the oracle is not float64: the reference does not run in it"
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
            why = "in many calls its clock and the judge's disagree"
        elif clocks.within_spinning:
            why = "its own threads kept spinning after calls"
        else:
            why = "other work kept this machine busy"
        yield f"{why}: {clocks.charged_ms:.4f} ms that its clock did not show count as its own"
    if len(rounds.samples["candidate"]) + rounds.discarded < planned_rounds:
        yield "timing stopped early: slower than the limit"
    if not tolerance.limits[AS_GIVEN].separates:
        yield "this task cannot distinguish the allowed precision from the next lower one"
    if clocks.max_widen_ms > _NOTED_SHARE * decision.statistics.deciding_ms:
        skipped = f" ({facts.burst_skip_reason})" if facts.burst_skip_reason else ""
        yield f"too short for the judge's clock{skipped}: the interval is widened by what may be hidden"
    if baselines.uses_sealed_calls:
        yield from _prelaunch_notes(decision, facts, baselines)
    for name, why in tolerance.skipped.items():
        if name in (ODD_ROWS, PADDED_ROWS, INFINITIES):  # many tasks are not defined there
            continue
        yield f"inputs {name} not used: {why}"


def _prelaunch_notes(decision: Decision, facts: Facts, baselines: Baselines) -> Iterator[str]:
    anchor = decision.anchor
    if anchor not in baselines.prelaunchable:
        yield f"{anchor} cannot be launched ahead of its inputs: launch overhead is part of all times"
    elif not facts.prelaunch:
        why = (
            "delays the writing of its inputs when launched ahead of them"
            if facts.retried_without_prelaunch
            else "cannot be launched ahead of its inputs"
        )
        yield f"it {why}: it is compared with the baseline's device time"
    single, queued = (
        float(facts.rounds.log_ratio(anchor, "candidate", kind).median().exp())
        for kind in ("single", "queued")
    )
    if facts.prelaunch and single < NOISE_SHARE * queued:
        yield f"its host launches it slowly: {single:.2f}x in single calls, {queued:.2f}x on the device alone"


def measurement(
    decision: Decision, facts: Facts, tolerance: Tolerance, baselines: Baselines, target: str
) -> Measurement:
    """The verdict's `measurement`: rounds, clocks, the A/A control."""
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
