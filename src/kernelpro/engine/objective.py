"""What a run looks for, and what that changes: whose energy is measured, what the tree is told, who wins.

    speed             the fastest; energy is not measured
    energy-at-speed   lexicographic: of those within `speed_tolerance` of the fastest, the one with the least energy
    edp               the least energy x delay

Energy takes half a minute a candidate. During the search it is measured of candidates that come near their parent's speed, in the
final round of all that may win. All energies are ratios to a baseline's that was measured in turn with the candidate, so that
a warmer board does not decide.

The tree knows one number for a candidate, a time. For the other objectives it is told the time that is worth the same:

    edp               ms x sqrt(power ratio)          since edp ratio = time ratio^2 x power ratio
    energy-at-speed   ms x (power ratio)^w            w makes a fifth less power worth all of the tolerance, and nothing worth more

A candidate without a measured energy counts as one with the baseline's power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from kernelpro.records import Energy, Finding, Point, RunConfig, Step, Verdict

_NEAR = {"energy-at-speed": 1.0, "edp": 1.25}
"""Times the parent's time (and the tolerance) up to which energy is measured. With edp a slower kernel may be the better one, but a
quarter more time takes a third less power to make up for."""
_LEANER = 0.8
_MOST_FINALISTS = 6
_APART = 0.05
"""Two judgements of a kernel may lie further apart than their intervals say: those of 30 kernels on an H200 did by up to 0.8 %."""


def max_energy_ms(config: RunConfig, baseline_ms: float, parent: Step | None) -> float:
    """Up to which time a new candidate's energy is worth measuring; 0: never."""
    if config.objective == "speed":
        return 0.0
    base = parent.ms if parent and parent.ms else baseline_ms
    return _NEAR[config.objective] * (1 + config.speed_tolerance) * base


def cost_ms(config: RunConfig, step: Step) -> float | None:
    """What the tree is told: see above. None where the candidate failed."""
    told = _told(step.verdict)
    if step.ms is None or told is None or config.objective == "speed":
        return step.ms
    power = told.ratio["power"].value
    if config.objective == "edp":
        return step.ms * math.sqrt(power)
    most = math.log1p(config.speed_tolerance)
    gained = most * math.log(power) / math.log(1 / _LEANER)
    return step.ms * math.exp(max(-most, min(most, gained)))


def finalists(config: RunConfig, ranked: Iterable[Step]) -> list[Step]:
    """Who is judged again: those of the first few who may be the fastest. With energy as an objective the fastest, and those who
    may win."""
    steps, few = list(ranked), max(1, config.finalists)
    if config.objective == "speed":
        return _perhaps_fastest(steps[:few])
    fastest = min((step for step in steps if step.ms), key=lambda step: step.ms or math.inf, default=None)
    if fastest is None or fastest.ms is None:
        return steps[:few]
    near = {step.number for step in steps if step.ms and step.ms <= (1 + config.speed_tolerance) * fastest.ms}
    quantity = _quantity(config)
    told = {
        step.number: e
        for step in steps
        if (quantity == "edp" or step.number in near) and (e := _told(step.verdict))
    }
    least = {
        energy.baseline: min(e.ratio[quantity].high for e in told.values() if e.baseline == energy.baseline)
        for energy in told.values()
    }

    def may_win(step: Step) -> bool:
        mine = told.get(step.number)
        return mine.ratio[quantity].low <= least[mine.baseline] if mine else step.number in near

    chosen = {step.number: step for step in (fastest, *steps[:few], *filter(may_win, steps))}
    return list(chosen.values())[: max(few, _MOST_FINALISTS)]


def _perhaps_fastest(steps: list[Step]) -> list[Step]:
    times = {
        step.number: step.verdict.times["candidate"] for step in steps if step.verdict and step.verdict.times
    }
    least = min((time.high for time in times.values()), default=math.inf)
    return [
        step for step in steps if step.number not in times or times[step.number].low <= (1 + _APART) * least
    ]


def best(config: RunConfig, held: Mapping[int, Verdict]) -> int | None:
    """The winner among those that passed. A fastest one whose energy is not known counts as one with the baseline's power: only who
    takes less than that, beyond doubt, comes before it."""
    if not held:
        return None
    ms = {number: verdict.times["candidate"].value for number, verdict in held.items()}
    fastest = min(ms, key=lambda number: ms[number])
    if config.objective == "speed":
        return fastest
    told = {number: energy for number, verdict in held.items() if (energy := _told(verdict))}
    against = (
        told[fastest].baseline if fastest in told else _usual(energy.baseline for energy in told.values())
    )
    told = {number: energy for number, energy in told.items() if energy.baseline == against}
    if fastest not in told:
        slower = {
            number: (ms[number] / ms[fastest]) ** (2 if config.objective == "edp" else 1) for number in told
        }
        told = {
            number: energy
            for number, energy in told.items()
            if slower[number] * energy.ratio["power"].high < 1
        }
    if config.objective == "energy-at-speed":
        told = {
            number: energy
            for number, energy in told.items()
            if ms[number] <= (1 + config.speed_tolerance) * ms[fastest]
        }
    return min(told, key=lambda number: told[number].ratio[_quantity(config)].value, default=fastest)


def notes(config: RunConfig, held: Mapping[int, Verdict], winner: int) -> tuple[str, ...]:
    """What the choice of the winner means, in words."""
    if config.objective == "speed":
        return ()
    told = _told(held[winner])
    if told is None:
        return (f"energy decided nothing: {_unknown(held[winner])}",)
    fastest = min(held, key=lambda number: held[number].times["candidate"].value)
    other = _told(held[fastest])
    if winner == fastest:
        return (
            (f"step {winner} runs at the board's power limit, where energy is time",)
            if told.is_power_limited
            else ()
        )
    if other is None:
        unknown = f"that of step {fastest}, the fastest, is not known: {_unknown(held[fastest])}"
        return (f"step {winner} takes less power than {told.baseline}; {unknown}",)
    less = 1 - told.ratio["energy"].value / other.ratio["energy"].value
    slower = held[winner].times["candidate"].value / held[fastest].times["candidate"].value - 1
    clear = told.ratio["energy"].high < other.ratio["energy"].low
    sure = "" if clear else "; the intervals overlap"
    return (
        f"step {winner} takes {less:.1%} less energy than step {fastest}, the fastest, and {slower:.1%} more time{sure}",
    )


def describe(config: RunConfig) -> str:
    """What every author should know of the objective; empty where it is speed."""
    return {
        "speed": "",
        "energy-at-speed": f"the least energy a call among kernels within {config.speed_tolerance:.0%} of the fastest",
        "edp": "the least product of energy and time of a call",
    }[config.objective]


def describe_energy(step: Step) -> str:
    """What one who improves this step should know of its energy; empty where that is not known."""
    told = _told(step.verdict)
    if told is None:
        return ""
    ratio, joules, watts = told.ratio["energy"], told.joules["candidate"], told.watts["candidate"]
    return f"This kernel takes {1e3 * joules.value:.4g} mJ at {watts.value:.0f} W, {ratio.value:.2f} of {told.baseline}'s energy."


def front(verdicts: Mapping[int, Verdict | None]) -> tuple[Point, ...]:
    """All candidates whose energy is known, fastest first; `best` marks those that no other beats in both time and energy.

    All of a run are measured beside the same baseline; one for whom that could not be had is left out.
    """
    told = {
        number: (verdict, energy)
        for number, verdict in verdicts.items()
        if verdict and (energy := _told(verdict))
    }
    points = [
        Point(
            number,
            verdict.times["candidate"].value,
            energy.joules["candidate"].value,
            energy.ratio["energy"],
            energy.baseline,
        )
        for number, (verdict, energy) in told.items()
    ]
    usual = _usual(point.against for point in points)
    found: list[Point] = []
    for point in sorted(
        (p for p in points if p.against == usual), key=lambda p: (p.ms, p.energy.value, p.step)
    ):
        beaten = any(p.energy.value <= point.energy.value for p in found if p.best)
        found.append(Point(point.step, point.ms, point.joules, point.energy, point.against, not beaten))
    return tuple(found)


def gain_of_advice(finding: Finding, parent: Step, step: Step) -> float | None:
    """How many times better a step became by a finding's own measure: faster, or with less energy. None where that is not known."""
    if finding.objective == "speed":
        return parent.ms / step.ms if parent.ms and step.ms else None
    before, after = _told(parent.verdict), _told(step.verdict)
    return before.ratio["energy"].value / after.ratio["energy"].value if before and after else None


def _quantity(config: RunConfig) -> str:
    return "edp" if config.objective == "edp" else "energy"


def _usual(names: Iterable[str]) -> str:
    """The baseline beside which most were measured; empty where nobody was."""
    return next((name for name, _ in Counter(names).most_common(1)), "")


def _unknown(verdict: Verdict) -> str:
    """Why an energy is not known."""
    return verdict.energy.unavailable if verdict.energy else "it was not measured"


def _told(verdict: Verdict | None) -> Energy | None:
    energy = verdict.energy if verdict else None
    return energy if energy and not energy.unavailable else None
