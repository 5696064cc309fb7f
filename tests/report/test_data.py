"""What a report knows of a run: read from the store alone, the same for all three formats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import made_runs
import pytest
from answer_formats import Text

from kernelpro.engine.store import RunStore
from kernelpro.llm.question import Exchange, ModelError, Question
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import Energy, EnergyWindow, Interval, Measurement, Point, Status, Step
from kernelpro.records.events import RunStarted, StepProgress
from kernelpro.report import collect_report, render, write
from kernelpro.report.charts import working_seconds

KINDS = [
    made_runs.won,
    made_runs.searched,
    made_runs.compiler_won,
    made_runs.lost,
    made_runs.refused,
    made_runs.hostile,
]


def test_the_headline_names_both_baselines_with_intervals_and_the_harder_of_them(tmp_path: Path) -> None:
    verdict = collect_report(made_runs.won(tmp_path)).verdict
    assert verdict.result == "faster" and verdict.hardest_baseline == "compile"
    assert "2.44x [2.39, 2.49] as fast as torch.compile, the hardest baseline to beat" in verdict.headline
    assert "4.88x [4.78, 4.98] over PyTorch eager (FP32)" in verdict.headline
    correct, floor = verdict.sentences
    assert (
        "is 3.0e-07. The tolerance for inputs as given is 1.2e-06. No error is above 25 %" in correct
        and "61 % of it is reached" in floor
    )


def test_a_gain_that_one_baseline_denies_is_called_unclear(tmp_path: Path) -> None:
    store = made_runs.searched(tmp_path)
    doubtful = {"eager_fp32": made_runs.near(1.4), "compile": made_runs.near(1.01)}
    store.save_outcome(made_runs.Outcome("spent", 7, made_runs.passed(7, 0.8, speedup=doubtful), (7,)))
    verdict = collect_report(store).verdict
    assert verdict.result == "unclear" and "within the noise (1.01x [0.99, 1.03])" in verdict.headline


def test_what_it_cost_is_added_up(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    cost = collect_report(store).cost
    assert cost.models.dollars == pytest.approx(0.10) and (
        cost.models.tokens_in,
        cost.models.tokens_out,
        cost.models.calls,
    ) == (7000, 2000, 5)
    assert cost.candidates == 7 and cost.wall_seconds == 321.0 and cost.device_seconds == 20.5
    assert cost.device_uses == {
        "probe": 12.5,
        "candidates": 8.0,
    } and "(probe 12 s, candidates 8.0 s)" in render(store, "md")
    assert (
        cost.outcomes == {"passed": 4, "wrong": 1, "build_failed": 1, "duplicate": 1}
        and cost.tuning_points == 3
    )


def test_what_failed_was_paid_for_too_and_each_role_is_named(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    transcripts = Transcripts(store.folder / FILE, "1-abc")
    for role, error in (("plan", None), ("code", ModelError("refused"))):
        question = Question(f"step-3/{role}", role, "s", "p", Text())
        exchange = Exchange(
            [{"role": "user", "text": "p"}],
            text="x",
            dollars=Decimal("0.5"),
            tokens_in=1000,
            tokens_out=10,
            calls=1,
        )
        transcripts.append("m", question, exchange, error)
    data = collect_report(store)
    step = next(step for step in data.steps if step.number == 3)
    elsewhere = sum(step.cost.dollars for step in data.steps if step.number != 3)
    assert (
        step.cost.dollars == 1.0
        and data.cost.models.dollars == pytest.approx(1.0 + elsewhere)
        and elsewhere > 0
    )
    assert [(role, cost.dollars, cost.calls) for role, cost in data.cost.roles.items()] == [
        ("plan", 0.5, 1),
        ("code", 0.5, 1),
    ]
    assert data.environment.prompts == ("1-abc",)
    assert "| plan | 1 | 1000 | 10 | 0.5000 |" in render(store, "md")
    page = render(store, "html")
    assert "Cost of the models" in page and "1-abc" in page
    assert "Cost of the models" not in render(made_runs.won(tmp_path), "html")


def test_a_step_tells_what_led_to_it_and_whether_it_kept_its_promise(tmp_path: Path) -> None:
    steps = {step.number: step for step in collect_report(made_runs.won(tmp_path)).steps}
    assert steps[3].confirmed is True and steps[3].gain == pytest.approx(3.0)
    assert steps[7].confirmed is False and steps[7].tuning and steps[7].tuning.point == {"BLOCK": 32}
    assert steps[2].confirmed is None
    (led,) = steps[3].parent_findings
    assert led.diagnostic == steps[3].diagnostic == "cpu_scalar_code" and led.gain == 2.5
    assert "-BLOCK = 2" in steps[3].code.text and "+BLOCK = 16" in steps[3].code.text
    assert steps[2].code.kind == "source" and steps[5].reason.startswith("kernel.cpp:18")
    assert [n for n, s in steps.items() if s.on_path] == [2, 3, 7] and [
        n for n, s in steps.items() if s.is_winner
    ] == [7]


def test_the_compilers_work_is_called_so_wherever_it_appears(tmp_path: Path) -> None:
    data = collect_report(made_runs.compiler_won(tmp_path))
    assert data.verdict.headline.startswith(
        "No candidate beat the compiler. The fastest is torch.compile's own output (step 1)"
    )
    assert (
        data.verdict.sentences[0]
        == "They are the same kernels, called without torch.compile's guards and wrapper."
    )
    assert data.verdict.is_compiler and data.steps[0].is_compiler and "compiler" in data.steps[0].author_name
    assert data.roofline.stops[-1].label == "step 1 (compiler)"
    assert collect_report(made_runs.compiler_won(tmp_path, "torch.compile max-autotune")).steps[0].is_compiler
    store = RunStore.open(tmp_path, data.run.id)
    assert (
        render(store, "md").startswith("# affine: no candidate beat the compiler\n")
        and render(store, "md").count("compiler") >= 4
    )
    page = render(store, "html")
    assert 'class="verdict not-original"' in page and 'class="verdict faster"' in render(
        made_runs.won(tmp_path), "html"
    )
    assert page.count("compiler's own work") + page.count("compiler&#39;s own work") >= 4


def test_the_way_up_the_roof_ends_at_the_final_time(tmp_path: Path) -> None:
    roof = collect_report(made_runs.won(tmp_path)).roofline
    assert [stop.label for stop in roof.stops] == [
        "PyTorch eager (FP32)",
        "torch.compile",
        "step 2",
        "step 3",
        "step 7",
    ]
    last = roof.stops[-1]
    assert last.kind == "winner" and last.ms == pytest.approx(0.82)
    assert last.flops_per_second == pytest.approx(1e7 / 0.82e-3)
    assert roof.attainable == pytest.approx(1e7 / 3e7 * 6e10) and math.isclose(roof.ridge, 7 / 6)


def test_best_so_far_never_rises(tmp_path: Path) -> None:
    points = collect_report(made_runs.won(tmp_path)).progress
    assert [point.best_ms for point in points] == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.8]
    assert [point.step for point in points if point.ms is None] == [4, 5, 6]


def test_time_between_two_sittings_does_not_count() -> None:
    events = [
        (100.0, RunStarted()),
        (110.0, StepProgress(1, "settled")),
        (9000.0, RunStarted()),
        (9005.0, StepProgress(2, "settled")),
    ]
    assert working_seconds(events) == {1: 10.0, 2: 15.0}


def test_a_run_without_a_winner_says_what_became_of_its_candidates(tmp_path: Path) -> None:
    data = collect_report(made_runs.lost(tmp_path))
    assert (
        data.verdict.headline
        == "No winner: none of 4 candidates passed (2 gave wrong results, 1 cheated, 1 timed out)."
    )
    assert data.winner is None and data.verdict.step is None and len(data.baselines) == 2


def test_a_run_that_never_began_says_why(tmp_path: Path) -> None:
    data = collect_report(made_runs.refused(tmp_path))
    assert (
        data.verdict.result == "failed"
        and "cannot be scored: its output is constant" in data.verdict.headline
    )
    assert data.notes == () and not any("resume" in item.command for item in data.reproduce)


def test_an_unfinished_run_shows_its_best_so_far_and_how_to_go_on(tmp_path: Path) -> None:
    data = collect_report(made_runs.searched(tmp_path))
    assert data.verdict.result == "unfinished" and data.verdict.step == 7
    assert data.verdict.headline.startswith("Not finished; best so far")
    assert data.reproduce[0].command.startswith("kernelpro resume affine-1")


def test_notes_hold_what_did_not_hold_up_what_was_skipped_and_what_is_doubtful(tmp_path: Path) -> None:
    store = made_runs.searched(tmp_path)
    noisy = Measurement(a_a=Interval(1.0, 0.8, 1.2))
    final = made_runs.passed(7, 0.4, sandbox="process", measurement=noisy)
    store.save_outcome(made_runs.Outcome("spent", 7, final, (7,), ("step 3 did not hold up: wrong",)))
    notes = "\n".join(collect_report(store).notes)
    assert "did not hold up" in notes and "hardware counters: this machine offers none" in notes
    assert (
        "[0.80, 1.20] instead of 1" in notes
        and "sandbox was process" in notes
        and "faster than the floor" in notes
    )
    assert notes.count("hardware counters") == 1


def test_a_step_on_its_way_and_a_lost_source_do_not_stop_the_report(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    store.save_step(Step(8, 7, "improve"))
    lost = store.steps()[3]
    (store.folder / "sources" / f"{lost.final_source}.py").unlink()
    data = collect_report(store)
    assert data.steps[7].state == "chosen"
    assert data.steps[3].code.kind == "lost" and "is missing" in data.steps[3].code.text
    assert "is missing" in render(store, "html")


def test_where_nothing_was_found_the_report_says_what_the_guidance_says(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    store.save_step(replace(store.steps()[6], diagnosis=made_runs.diagnosis()))
    for form in ("html", "md"):
        text = render(store, form)
        assert (
            "No diagnostic matched. Some did not run: hardware counters." in text
            and "this close to the floor" not in text
        )


def test_a_task_without_arithmetic_has_no_roofline(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    assert made_runs.FACTS.work
    store.save_task_facts(replace(made_runs.FACTS, work=replace(made_runs.FACTS.work, vector_flops=0.0)))
    assert collect_report(store).roofline is None and 'id="roofline"' not in render(store, "html")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_run_has_all_three_formats_and_the_same_keys(
    tmp_path: Path, kind: Callable[[Path], RunStore]
) -> None:
    store = kind(tmp_path)
    data = json.loads(render(store, "json"))
    usual = collect_report(made_runs.won(tmp_path)).to_json()
    assert (
        data.keys() == usual.keys()
        and data["verdict"].keys() == usual["verdict"].keys()
        and data["schema"] == 1
    )
    assert write(store) == store.folder / "report.html"
    assert not list(store.folder.glob(".*partial"))
    assert render(store, "md").startswith("# affine")


def test_long_differences_are_cut_and_say_so(tmp_path: Path) -> None:
    store = made_runs.begun(tmp_path)
    step = Step(1, 0, "seed", plan="long", author="x", verdict=made_runs.failed(1, Status.WRONG, "no"))
    made_runs.settle(store, step, remark="\n".join(["# line"] * 2000))
    code = collect_report(store).steps[0].code
    assert code.omitted_lines > 1000 and f"{code.omitted_lines} more lines" in render(store, "html")


def test_energy_is_told_and_drawn_where_it_was_measured(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    assert collect_report(store).pareto_front == () and 'id="energy"' not in render(store, "html")
    outcome = store.outcome()
    assert outcome and outcome.verdict
    ratio = {name: made_runs.near(0.85) for name in ("energy", "power", "edp")}
    both = dict.fromkeys(("candidate", "compile"), made_runs.near(0.02))
    window = EnergyWindow("candidate", 0.0, 10.0, 1.0, 50, 0.02, 0.01)
    energy = Energy("NVML", "compile", both, both, both, ratio, "yes", {"before": 80.0}, (window,))
    points = (
        Point(2, 0.8, 0.02, made_runs.near(0.85), "compile", True),
        Point(1, 0.9, 0.03, made_runs.near(1.1), "compile"),
    )
    store.save_outcome(replace(outcome, verdict=replace(outcome.verdict, energy=energy), front=points))
    data = collect_report(store)
    assert data.verdict.energy.joules["candidate"].value == 0.02 and not data.verdict.energy.windows
    page = render(store, "html")
    assert 'id="energy"' in page and page.count("<circle") == 2 and "20 mJ" in page
    assert (
        "energy-delay product 0.850 [0.833, 0.867]" in page
        and "<dt>energy-delay, of torch.compile's</dt><dd>0.85" in page
    )
    assert "energy-delay product 0.850 [0.833, 0.867]" in render(store, "md")
    assert "| step 2 | 0.8 | 20 |" in render(store, "md")


def test_tables_say_which_values_are_final_and_which_are_of_the_search(tmp_path: Path) -> None:
    for store, final in (
        (made_runs.won(tmp_path / "won"), True),
        (made_runs.searched(tmp_path / "searched"), False),
    ):
        page, text = render(store, "html"), render(store, "md")
        for legend in (page.partition('class="steps-table"')[2], text.partition("## Steps")[2]):
            assert "Times and speed-ups of steps are those of the search." in legend
            assert ("final values are in the table of baselines" in legend) == final
        assert "| outcome | speed-up in the search |" in text
        assert ("<dt>time in the search</dt>" in page) == final
    store = made_runs.won(tmp_path / "front")
    outcome = store.outcome()
    assert outcome and outcome.best
    numbers = (outcome.best, 1)
    points = tuple(Point(n, 0.8, 0.02, made_runs.near(0.85), "compile", n > 1) for n in numbers)
    store.save_outcome(replace(outcome, finalists=(outcome.best,), front=points))
    legend = f"Final values for step {outcome.best}; the other values are those of the search."
    assert legend in render(store, "md") and legend in render(store, "html")


def test_energies_of_steps_are_a_column_and_a_front_before_the_run_has_ended(tmp_path: Path) -> None:
    store = made_runs.metered(tmp_path)
    data, page, text = collect_report(store), render(store, "html"), render(store, "md")
    assert [(point.step, point.best) for point in data.pareto_front] == [
        (7, True),
        (3, True),
    ] and 'id="energy"' in page
    lines = {line.split(" |")[0]: line for line in text.partition("## Steps")[2].splitlines()}
    assert "| speed-up in the search | mJ per call | energy | hypothesis confirmed |" in lines["| step"]
    assert "| 2.00x | 280 | 0.700 [0.693, 0.707] of torch.compile's | yes |" in lines["| 3"]
    assert "| 1.00x |  |  |  |" in lines["| 1"], "refused: no number"
    assert "mJ per call" in page.partition('class="steps-table"')[2]
    assert (
        "280 mJ per call at 280 W, less than torch.compile (0.700 [0.693, 0.707] of its 400 mJ at 400 W); "
        "energy-delay product 0.700 [0.693, 0.707]" in page
    )
    assert "not measured: no counter" in page
    assert "mJ per call" not in render(made_runs.won(tmp_path), "md") + render(
        made_runs.won(tmp_path), "html"
    )
