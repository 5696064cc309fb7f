"""The objective of a run: which candidates have their energy measured, how the tree ranks them, and which one
wins.

    speed             the fastest candidate; energy is not measured
    energy-at-speed   the lowest energy among candidates within `speed_tolerance` of the fastest
    edp               the lowest energy x delay

Measuring energy takes half a minute per candidate. During the search, only candidates near their parent's
speed are measured; in the final judging, all candidates that may win. Every energy is a ratio to a baseline
that is measured in alternation with the candidate, so that the temperature of the board cancels out.

Times are comparable times (records/comparable.py): speed-ups over the run's baseline, as milliseconds. The
tree ranks candidates by one number, a time. For the energy objectives this is an equivalent time:

    edp               ms x sqrt(power ratio)    because edp ratio = time ratio^2 x power ratio
    energy-at-speed   ms x (power ratio)^w      w: 20 % less power is worth the whole tolerance, and more
                                                savings are worth no more

A candidate whose energy was not measured is ranked as if it took the baseline's power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kernelpro.engine.shape_dispatch import specialists
from kernelpro.records import ComparableTimes, Energy, Finding, Point, RunConfig, Step, Verdict

_ENERGY_RANGE = {"energy-at-speed": 1.0, "edp": 1.25}
"""Energy is measured if a candidate's time is at most this multiple of the parent's (plus the tolerance). For
edp a slower kernel may be better, but 25 % more time must be made up for by 36 % less power."""
_FULL_POWER_SAVING = 0.8
"""The power ratio that is worth the whole tolerance."""
_MAX_FINALISTS = 6
_RETIMING_SPREAD = 0.05
"""Margin for finalists: times of two judgements of a kernel may differ by more than their intervals. For 30
kernels on an H200 they differed by up to 0.8 %."""


def max_energy_ms(config: RunConfig, times: ComparableTimes, parent: Step | None) -> float:
    """The longest time at which a new candidate's energy is measured; 0: energy is not measured."""
    if config.objective == "speed":
        return 0.0
    base = times.ms(parent) or min(times.baselines.values())
    return _ENERGY_RANGE[config.objective] * (1 + config.speed_tolerance) * base


def cost_ms(config: RunConfig, times: ComparableTimes, step: Step) -> float | None:
    """The equivalent time by which the tree ranks a step; None if it did not pass."""
    ms, energy = times.ms(step), _measured(step.verdict)
    if ms is None or energy is None or config.objective == "speed":
        return ms
    power = energy.ratio["power"].value
    if config.objective == "edp":
        return ms * math.sqrt(power)
    limit = math.log1p(config.speed_tolerance)
    change = limit * math.log(power) / math.log(1 / _FULL_POWER_SAVING)
    return ms * math.exp(max(-limit, min(limit, change)))


def finalists(config: RunConfig, times: ComparableTimes, ranked: Iterable[Step]) -> list[Step]:
    """The steps to judge again. For speed: the best few of the ranking that may be the fastest and, for a
    task with several shapes, the fastest for each shape. For the energy objectives: the fastest, the best few
    of the ranking, and others that may win."""
    steps, count = list(ranked), max(1, config.finalists)
    if config.objective == "speed":
        near_best = _perhaps_fastest(times, steps[:count])
        chosen = {step.number: step for step in (*near_best, *specialists(times, steps))}
        return list(chosen.values())
    ms = {step.number: time for step in steps if (time := times.ms(step))}
    if not ms:
        return steps[:count]
    limit = (1 + config.speed_tolerance) * min(ms.values())
    fastest = next(step for step in steps if ms.get(step.number) == min(ms.values()))
    near = {number for number, time in ms.items() if time <= limit}
    quantity = _quantity(config)
    energies = {
        step.number: energy
        for step in steps
        if (quantity == "edp" or step.number in near) and (energy := _measured(step.verdict))
    }
    least: dict[str, float] = {}
    for energy in energies.values():
        high = energy.ratio[quantity].high
        least[energy.baseline] = min(high, least.get(energy.baseline, high))

    def may_win(step: Step) -> bool:
        energy = energies.get(step.number)
        return energy.ratio[quantity].low <= least[energy.baseline] if energy else step.number in near

    chosen = {step.number: step for step in (fastest, *steps[:count], *filter(may_win, steps))}
    return list(chosen.values())[: max(count, _MAX_FINALISTS)]


def _perhaps_fastest(times: ComparableTimes, steps: list[Step]) -> list[Step]:
    ms = {step.number: time for step in steps if (time := times.interval(step.verdict))}
    limit = (1 + _RETIMING_SPREAD) * min((time.high for time in ms.values()), default=math.inf)
    return [step for step in steps if step.number not in ms or ms[step.number].low <= limit]


def _milliseconds(times: ComparableTimes, passed: Mapping[int, Verdict]) -> dict[int, float]:
    intervals = {number: times.interval(verdict) for number, verdict in passed.items()}
    return {number: interval.value for number, interval in intervals.items() if interval}


def best(config: RunConfig, times: ComparableTimes, passed: Mapping[int, Verdict]) -> int | None:
    """The winner among the steps that passed; None if there are none.

    If the energy of the fastest step is unknown, the step is assumed to take the baseline's power. Another
    step wins over it only if its energy is certainly lower.
    """
    if not passed:
        return None
    ms = _milliseconds(times, passed)
    fastest = min(ms, key=lambda number: ms[number])
    if config.objective == "speed":
        return fastest
    energies = {number: energy for number, verdict in passed.items() if (energy := _measured(verdict))}
    if fastest in energies:
        baseline = energies[fastest].baseline
    else:
        baseline = _most_common(energy.baseline for energy in energies.values())
    exponent = 2 if config.objective == "edp" else 1

    def is_eligible(number: int, energy: Energy) -> bool:
        slowdown = ms[number] / ms[fastest]
        if energy.baseline != baseline:
            return False
        if fastest not in energies and slowdown**exponent * energy.ratio["power"].high >= 1:
            return False
        return config.objective != "energy-at-speed" or slowdown <= 1 + config.speed_tolerance

    eligible = {number: energy for number, energy in energies.items() if is_eligible(number, energy)}
    return min(eligible, key=lambda number: eligible[number].ratio[_quantity(config)].value, default=fastest)


def notes(
    config: RunConfig, times: ComparableTimes, passed: Mapping[int, Verdict], winner: int
) -> tuple[str, ...]:
    """Remarks on how energy influenced the choice of the winner."""
    if config.objective == "speed":
        return ()
    energy = _measured(passed[winner])
    if energy is None:
        return (f"energy did not decide: {_why_unknown(passed[winner])}",)
    ms = _milliseconds(times, passed)
    fastest = min(ms, key=lambda number: ms[number])
    if winner == fastest:
        limited = f"step {winner} runs at the board's power limit, where energy is proportional to time"
        return (limited,) if energy.is_power_limited else ()
    other = _measured(passed[fastest])
    if other is None:
        unknown = f"the energy of step {fastest}, the fastest, is unknown: {_why_unknown(passed[fastest])}"
        return (f"step {winner} takes less power than {energy.baseline}; {unknown}",)
    less = 1 - energy.ratio["energy"].value / other.ratio["energy"].value
    slower = ms[winner] / ms[fastest] - 1
    overlap = energy.ratio["energy"].high >= other.ratio["energy"].low
    return (
        f"step {winner} takes {less:.1%} less energy than step {fastest}, the fastest, "
        f"and {slower:.1%} more time{'; the intervals overlap' * overlap}",
    )


def describe(config: RunConfig) -> str:
    """The objective in words, for the author; empty for speed."""
    tolerance = f"{config.speed_tolerance:.0%}"
    return {
        "speed": "",
        "energy-at-speed": f"the least energy per call among kernels within {tolerance} of the fastest",
        "edp": "the smallest product of energy and time of a call",
    }[config.objective]


def describe_energy(step: Step) -> str:
    """The energy of a step in words, for the author of the next step; empty if unknown."""
    energy = _measured(step.verdict)
    if energy is None:
        return ""
    ratio, joules, watts = energy.ratio["energy"], energy.joules["candidate"], energy.watts["candidate"]
    return (
        f"This kernel takes {1e3 * joules.value:.4g} mJ at {watts.value:.0f} W, "
        f"{ratio.value:.2f} of {energy.baseline}'s energy."
    )


def front(times: ComparableTimes, verdicts: Mapping[int, Verdict | None]) -> tuple[Point, ...]:
    """All candidates with a measured energy, fastest first; `best` marks the Pareto front of time and energy.

    The candidates of a run are measured against one baseline. A candidate with another baseline is left out.
    """
    points = [
        Point(
            number,
            time.value,
            energy.joules["candidate"].value,
            energy.ratio["energy"],
            energy.baseline,
        )
        for number, verdict in verdicts.items()
        if (energy := _measured(verdict)) and (time := times.interval(verdict))
    ]
    baseline = _most_common(point.baseline for point in points)
    comparable = [point for point in points if point.baseline == baseline]
    marked: list[Point] = []
    for point in sorted(comparable, key=lambda p: (p.ms, p.energy.value, p.step)):
        dominated = any(p.energy.value <= point.energy.value for p in marked if p.best)
        marked.append(replace(point, best=not dominated))
    return tuple(marked)


def gain_of_advice(finding: Finding, times: ComparableTimes, parent: Step, step: Step) -> float | None:
    """The factor by which a step improved on its parent, in the finding's objective: speed or energy. None if
    unknown."""
    if finding.objective == "speed":
        return times.gain(step, parent)
    before, after = _measured(parent.verdict), _measured(step.verdict)
    if not (before and after and before.baseline == after.baseline):
        return None
    return before.ratio["energy"].value / after.ratio["energy"].value


def _quantity(config: RunConfig) -> str:
    return "edp" if config.objective == "edp" else "energy"


def _most_common(names: Iterable[str]) -> str:
    return next((name for name, _ in Counter(names).most_common(1)), "")


def _why_unknown(verdict: Verdict) -> str:
    return verdict.energy.unavailable if verdict.energy else "it was not measured"


def _measured(verdict: Verdict | None) -> Energy | None:
    energy = verdict.energy if verdict else None
    return energy if energy and not energy.unavailable else None
