"""Objectives: whose energy is measured, how the tree ranks, which step wins, and the Pareto front."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from engine.verdicts import verdict

from kernelpro.cli.commands.runs import ShowOptions
from kernelpro.cli.runs import show_run
from kernelpro.engine import objective
from kernelpro.engine.final_judging import FinalJudging
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    ComparableTimes,
    EnergyWindow,
    Finding,
    Gain,
    Interval,
    Outcome,
    Point,
    RunConfig,
    Severity,
    Step,
    Task,
    Verdict,
)
from kernelpro.report import pareto_plot
from kernelpro.report.wording import describe_energy


def step(number: int, ms: float, power: float | None = None) -> Step:
    return Step(number, 0, "seed", "settled", verdict=verdict(ms, power))


def config(wanted: str, **more: object) -> RunConfig:
    return RunConfig(Task("", "t"), "cuda", "script", objective=wanted, **more)  # type: ignore[arg-type]


SPEED, LEAN, EDP = config("speed"), config("energy-at-speed"), config("edp")
TIMES = ComparableTimes({"compile": 1.0})
VERDICTS = {1: verdict(0.500, 1.0), 2: verdict(0.505, 0.8), 3: verdict(0.520, 0.5), 4: verdict(0.9, 0.45)}


def test_within_the_tolerance_the_least_energy_wins() -> None:
    assert objective.best(SPEED, TIMES, VERDICTS) == 1
    assert objective.best(LEAN, TIMES, VERDICTS) == 2
    assert objective.best(config("energy-at-speed", speed_tolerance=0.05), TIMES, VERDICTS) == 3
    assert objective.best(EDP, TIMES, VERDICTS) == 3
    assert objective.best(LEAN, TIMES, {}) is None


def test_where_energy_was_refused_the_fastest_wins_and_the_reason_is_told() -> None:
    verdicts_by_step = {
        1: verdict(0.5, refused="the GPU was throttled"),
        2: verdict(0.505, refused="the GPU was throttled"),
    }
    assert objective.best(LEAN, TIMES, verdicts_by_step) == 1
    assert objective.notes(LEAN, TIMES, verdicts_by_step, 1) == (
        "energy did not decide: the GPU was throttled",
    )


def test_a_winner_at_the_boards_limit_is_told_as_such() -> None:
    """At the power limit, energy is proportional to time."""
    free = verdict(0.5, 1.7)
    assert free.energy
    window = EnergyWindow("candidate", 0.0, 1360.0, 2.0, 4000, 5e-4, 0.001, power_capped=1.0)
    rejected = replace(window, rejection="the device was throttled")
    other = replace(window, side="compile")
    for windows, limited in (
        ((window, window, replace(window, power_capped=0.0)), True),
        ((replace(window, power_capped=0.2), rejected, other), False),
    ):
        energy = replace(free.energy, windows=windows)
        verdicts_by_step = {1: replace(free, energy=energy)}
        assert (
            objective.notes(LEAN, TIMES, verdicts_by_step, 1)
            == ("step 1 runs at the board's power limit, where energy is proportional to time",) * limited
        )
        assert ("680 W, the board's power limit, " in describe_energy(energy)) == limited


def test_nobody_takes_less_than_a_fastest_whose_energy_is_not_known() -> None:
    verdicts_by_step = {1: verdict(0.5, refused="the GPU was throttled"), 2: verdict(0.505, 2.5)}
    assert objective.best(LEAN, TIMES, verdicts_by_step) == objective.best(EDP, TIMES, verdicts_by_step) == 1
    assert objective.notes(LEAN, TIMES, verdicts_by_step, 1) == (
        "energy did not decide: the GPU was throttled",
    )


def test_a_fastest_whose_energy_is_not_known_counts_as_the_baseline() -> None:
    unknown = verdict(0.5, refused="calls in a row take another time")
    verdicts_by_step = {1: unknown, 2: verdict(0.505, 0.8), 3: verdict(0.509, 0.9), 4: verdict(0.52, 0.3)}
    assert (
        objective.best(LEAN, TIMES, verdicts_by_step) == 2
        and objective.best(EDP, TIMES, verdicts_by_step) == 4
    )
    (note,) = objective.notes(LEAN, TIMES, verdicts_by_step, 2)
    assert "step 1, the fastest, is unknown: calls in a row take another time" in note
    assert objective.best(LEAN, TIMES, {1: unknown, 4: verdicts_by_step[4]}) == 1, "too slow"
    assert objective.best(LEAN, TIMES, {1: unknown, 2: verdict(0.505, 0.995)}) == 1, (
        "no less, for all that is known"
    )


def test_ratios_to_different_baselines_are_not_compared() -> None:
    verdicts_by_step = {
        1: verdict(0.500, 1.0),
        2: beside("eager_fp32", verdict(0.501, 0.4)),
        3: verdict(0.502, 0.9),
    }
    assert objective.best(LEAN, TIMES, verdicts_by_step) == 3
    assert [point.step for point in objective.front(TIMES, verdicts_by_step)] == [1, 3]
    ranked = [Step(number, 0, "seed", "settled", verdict=one) for number, one in verdicts_by_step.items()]
    assert {s.number for s in objective.finalists(replace(LEAN, finalists=1), TIMES, ranked)} == {1, 2, 3}, (
        "each the least beside its own"
    )


def beside(baseline: str, found: Verdict) -> Verdict:
    assert found.energy
    energy = found.energy
    joules = {"candidate": energy.joules["candidate"], baseline: energy.joules[energy.baseline]}
    return replace(found, energy=replace(energy, baseline=baseline, joules=joules))


def test_the_saving_is_told_with_what_it_costs() -> None:
    (note,) = objective.notes(LEAN, TIMES, VERDICTS, 2)
    assert note == "step 2 takes 19.2% less energy than step 1, the fastest, and 1.0% more time"
    close = {1: verdict(0.500, 0.80), 2: verdict(0.501, 0.79)}
    assert objective.notes(LEAN, TIMES, close, 2)[0].endswith("; the intervals overlap")
    assert objective.notes(SPEED, TIMES, VERDICTS, 1) == ()


def test_the_tree_is_told_a_time_that_is_worth_the_same() -> None:
    assert objective.cost_ms(SPEED, TIMES, step(1, 0.5, 0.1)) == 0.5
    assert objective.cost_ms(EDP, TIMES, step(1, 0.5, 0.64)) == pytest.approx(0.5 * 0.8)
    assert objective.cost_ms(LEAN, TIMES, step(1, 0.5, 0.8)) == pytest.approx(0.5 / 1.02)
    assert objective.cost_ms(LEAN, TIMES, step(1, 0.5, 0.1)) == pytest.approx(0.5 / 1.02), (
        "energy never outweighs more than the tolerance"
    )
    assert objective.cost_ms(LEAN, TIMES, step(1, 0.5, 3.0)) == pytest.approx(0.5 * 1.02)
    for wanted in (SPEED, LEAN, EDP):
        assert objective.cost_ms(wanted, TIMES, step(1, 0.5)) == 0.5, (
            "without a measurement the baseline's power is assumed"
        )
        assert objective.cost_ms(wanted, TIMES, Step(2, 0, "seed")) is None


def test_an_edp_in_the_tree_orders_as_edp_does() -> None:
    steps = [
        step(n, ms, power) for n, (ms, power) in enumerate([(0.5, 1.0), (0.6, 0.5), (0.4, 2.0), (0.55, 0.7)])
    ]
    by_cost = sorted(steps, key=lambda s: objective.cost_ms(EDP, TIMES, s) or math.inf)
    by_edp = sorted(steps, key=lambda s: s.verdict.energy.ratio["edp"].value)  # type: ignore[union-attr]
    assert by_cost == by_edp


def test_energy_is_measured_of_what_comes_near_its_parent() -> None:
    assert objective.max_energy_ms(SPEED, TIMES, None) == 0.0
    assert objective.max_energy_ms(LEAN, TIMES, None) == pytest.approx(1.02)
    assert objective.max_energy_ms(LEAN, TIMES, step(1, 0.5)) == pytest.approx(0.51)
    assert objective.max_energy_ms(EDP, TIMES, step(1, 0.5)) > 0.6


def test_all_that_are_about_as_fast_as_the_fastest_are_finalists() -> None:
    ranked = [step(n, ms) for n, ms in enumerate((0.500, 0.501, 0.503, 0.505, 0.508, 0.6), 1)]
    assert [s.number for s in objective.finalists(replace(SPEED, finalists=2), TIMES, ranked)] == [1, 2]
    assert [s.number for s in objective.finalists(replace(LEAN, finalists=2), TIMES, ranked)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert [s.number for s in objective.finalists(replace(LEAN, finalists=2), TIMES, ranked[5:])] == [6]


def test_who_cannot_be_the_fastest_is_no_finalist() -> None:
    ranked = [step(n, ms) for n, ms in enumerate((0.500, 0.52, 0.56, 0.6), 1)]
    assert [s.number for s in objective.finalists(replace(SPEED, finalists=4), TIMES, ranked)] == [1, 2]
    unsure = {"compile": Interval(1 / 0.56, 1 / 0.6, 1 / 0.51)}
    assert ranked[2].verdict
    ranked[2] = replace(ranked[2], verdict=replace(ranked[2].verdict, speedup=unsure))
    assert [s.number for s in objective.finalists(replace(SPEED, finalists=4), TIMES, ranked)] == [1, 2, 3]


def test_who_takes_more_energy_beyond_doubt_is_no_finalist_unless_the_fastest() -> None:
    ranked = [
        step(n, ms, watts)
        for n, ms, watts in ((1, 0.508, 0.8), (2, 0.507, 0.81), (3, 0.505, 1.2), (4, 0.500, 1.3))
    ]
    assert [s.number for s in objective.finalists(replace(LEAN, finalists=1), TIMES, ranked)] == [4, 1, 2]


def test_with_edp_a_slower_kernel_that_takes_far_less_power_is_a_finalist_however_many_are_fast() -> None:
    fast = [step(n, 0.500 + n / 1e4, 1.0) for n in range(1, 9)]
    ranked = [step(20, 0.60, 0.5), *fast, step(21, 0.61, 0.49)]
    assert {s.number for s in objective.finalists(replace(EDP, finalists=1), TIMES, ranked)} == {1, 20, 21}
    assert 20 not in {s.number for s in objective.finalists(LEAN, TIMES, [*fast, ranked[0]])}


def test_the_front_holds_what_nobody_beats_in_both() -> None:
    points = objective.front(
        TIMES, VERDICTS | {5: verdict(0.51, 1.2), 6: None, 7: verdict(0.4), 8: verdict(0.5, refused="no")}
    )
    assert [point.step for point in points] == [1, 2, 5, 3, 4], "fastest first; only those that were measured"
    assert {point.step for point in points if point.best} == {1, 2, 3}


def test_advice_for_energy_is_held_against_energy() -> None:
    def finding(kind: str) -> Finding:
        return Finding("tool", "kernel", Severity.LOW, (), "c", ("a",), Gain(1.2, "h"), objective=kind)  # type: ignore[arg-type]

    before, after = step(1, 0.5, 1.0), step(2, 0.5, 0.8)
    assert objective.gain_of_advice(finding("energy"), TIMES, before, after) == pytest.approx(1.25)
    assert objective.gain_of_advice(finding("speed"), TIMES, before, after) == pytest.approx(1.0)
    assert objective.gain_of_advice(finding("energy"), TIMES, before, step(3, 0.5)) is None


def test_an_author_hears_the_objective_and_what_was_measured() -> None:
    assert "within 2% of the fastest" in objective.describe(LEAN) and not objective.describe(SPEED)
    text = objective.describe_energy(step(1, 0.5, 0.8))
    assert "160 mJ" in text and "0.40 of compile's energy" in text
    assert not objective.describe_energy(step(1, 0.5))


def test_the_final_word_follows_the_objective() -> None:
    async def judge(one: Step) -> Verdict:
        return VERDICTS[one.number]

    steps = [Step(number, 0, "seed", "settled") for number in VERDICTS]
    for wanted, winner in ((SPEED, 1), (LEAN, 2), (EDP, 3)):
        outcome = asyncio.run(FinalJudging("done", judge, wanted, TIMES).decide(steps, []))
        assert outcome.best == winner
    lean = asyncio.run(
        FinalJudging("done", judge, LEAN, TIMES).decide(steps, [replace(steps[1], author="torch.compile")])
    )
    assert (
        lean.notes[0]
        == "the winner is torch.compile's own code (step 2): no other candidate is better by this objective"
    )


def test_a_run_shows_energies_and_draws_the_front_finished_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore.create(tmp_path, LEAN, "demo")
    for number, verdicts_by_step in VERDICTS.items():
        store.save_step(Step(number, 0, "seed", "settled", verdict=verdicts_by_step))
    show_run(ShowOptions(run=store.id, plot=str(tmp_path / "early.svg"), runs_dir=str(tmp_path)))
    store.save_outcome(Outcome("done", 2, VERDICTS[2], front=objective.front(TIMES, VERDICTS)))
    assert show_run(ShowOptions(run=store.id, plot=str(tmp_path / "front.svg"), runs_dir=str(tmp_path))) == 0
    assert (tmp_path / "early.svg").read_text() == (tmp_path / "front.svg").read_text(), "the same verdicts"
    assert "0.505 ms" in (shown := capsys.readouterr().out) and "162 mJ" in shown
    assert "reference, not measured yet" in shown and "0.0000" not in shown, "its task was never measured"
    drawn = ElementTree.parse(tmp_path / "front.svg").getroot()
    circles = [element for element in drawn.iter() if element.tag.endswith("circle")]
    assert len(circles) == len(VERDICTS) and len({circle.get("fill") for circle in circles}) == 2
    assert RunStore.open(tmp_path, store.id).outcome() == store.outcome(), (
        "the front survives its way through JSON"
    )
    assert show_run(ShowOptions(run=store.id, step=2, runs_dir=str(tmp_path))) == 0
    assert "energy: 162 mJ per call" in capsys.readouterr().out


def test_a_front_tells_its_lines_apart_and_names_no_more_than_can_be_read() -> None:
    def drawn(points: list[Point]) -> tuple[list[str], list[str]]:
        texts = [
            element.text or ""
            for element in ElementTree.fromstring(pareto_plot.plot_svg(points, "a run")).iter()
            if element.text
        ]
        return [text for text in texts if text.startswith("0.")], [
            text for text in texts if text.startswith("step ")
        ]

    alone, names = drawn([Point(2, 31.0, 0.09, Interval(0.684, 0.673, 0.694), "compile", True)])
    assert len(set(alone)) == 6 and names == ["step 2"]
    many = [
        Point(n, 10.0 + n, 0.09, Interval(0.9 - n / 100, 0.4, 1.0), "compile", n % 10 == 0)
        for n in range(1, 41)
    ]
    assert drawn(many)[1] == ["step 10", "step 20", "step 30", "step 40"]
