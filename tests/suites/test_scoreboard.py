"""The table of a bench, from verdicts made by hand: what it says of energy, and of what is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine.verdicts import verdict

from kernelpro.records import EnergyWindow, Hardware, ProbeData, Result, Status, Task, Verdict, Work
from kernelpro.suites import probe
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import LoggedResult, ResultsLog
from kernelpro.suites.scoreboard import (
    BenchConditions,
    Scoreboard,
    make_scoreboard,
    markdown,
    problem_table,
    remarks,
)


def made(*verdicts: Verdict) -> Scoreboard:
    """A problem for each verdict."""
    problems = [Problem(1, number, Task("", f"{number}_task")) for number in range(1, len(verdicts) + 1)]
    keys = {(1, number): [str(number)] for number in range(1, len(verdicts) + 1)}
    entries = {
        str(number): LoggedResult(str(number), Result("", verdict=found))
        for number, found in enumerate(verdicts, 1)
    }
    return make_scoreboard("mine", "kernels", "cuda", problems, keys, entries, BenchConditions())


def answered(*answers: list[Result], authors: tuple[str, ...] = ()) -> Scoreboard:
    """A problem for each list; `authors` names the author of each problem's kernels."""
    problems = [Problem(1, number, Task("", f"{number}_task")) for number in range(1, len(answers) + 1)]
    found = {
        (1, n): {
            f"{n}/{i}": LoggedResult(f"{n}/{i}", each, author=dict(enumerate(authors, 1)).get(n, ""))
            for i, each in enumerate(some)
        }
        for n, some in enumerate(answers, 1)
    }
    entries = {key: entry for some in found.values() for key, entry in some.items()}
    return make_scoreboard(
        "mine",
        "kernels",
        "cuda",
        problems,
        {place: list(some) for place, some in found.items()},
        entries,
        BenchConditions(),
    )


def probe_result(scorable: bool, name: str = "H200", torch: str = "2.9") -> Result:
    hardware = Hardware(name, facts={"sm": "90", "torch": torch, "triton": "3"})
    work, reason = Work(1, 1, 1.0), "" if scorable else "random"
    return Result("", data=ProbeData(scorable, reason, "tf32", "tf32", hardware, work, {}, {}, {}, 0.1, {}))


def test_device_time_of_searches_is_shown_by_use() -> None:
    uses = ({"probe": 4.0, "candidates": 20.0}, {"probe": 6.0, "candidates": 10.0}, {"probe": 5.0})
    entries = {
        str(n): LoggedResult(str(n), Result("", verdict=verdict(0.5)), sum(use.values()), use)
        for n, use in enumerate(uses)
    }
    problems = [Problem(1, n, Task("", f"{n}_task")) for n in range(3)]
    keys = {(1, n): [str(n)] for n in range(3)}
    board = make_scoreboard("mine", "playbook", "cuda", problems, keys, entries, BenchConditions())
    assert "device time of a problem by use (medians): probe 5.0 s, candidates 10.0 s" in remarks(board)


def test_each_row_tells_its_energy_and_against_what() -> None:
    found = made(verdict(0.5, 0.8), verdict(0.8), verdict(1.0, 0.9, against="eager_tf32"))
    titles, lines = problem_table(found)
    first = titles.index("J per call")
    assert titles[first : first + 4] == ["J per call", "energy vs baseline", "W", "energy against"]
    assert [line[first : first + 4] for line in lines] == [
        ["160 mJ", "0.400 [0.396, 0.404]", "320", "compile"],
        ["", "", "", ""],
        ["360 mJ", "0.900 [0.891, 0.909]", "360", "eager_tf32"],
    ]
    assert all(len(line) == len(titles) for line in lines) and "| 160 mJ |" in markdown((titles, lines))


def test_means_are_told_for_each_baseline_by_itself() -> None:
    found = made(verdict(0.5, 0.8), verdict(0.5, 1.25), verdict(1.0, 0.9, against="eager_tf32"))
    first, second, *_ = remarks(found)
    assert (
        first
        == "energy against compile: geomean 0.500 [0.496, 0.504], energy-delay 0.250 [0.248, 0.252] (2 problems)"
    )
    assert second.startswith("energy against eager_tf32: geomean 0.900") and second.endswith("(1 problem)")


def test_what_was_not_told_is_no_column_but_a_remark() -> None:
    found = made(verdict(0.5, refused="no counter"), verdict(0.5, refused="no counter"), verdict(0.5))
    assert "J per call" not in problem_table(found)[0] and not found.energy
    assert remarks(found)[0] == "energy not measured for 1/1 task, 1/2 task: no counter"


def test_what_a_compiler_wrote_is_called_so() -> None:
    names = ("playbook", "torch.compile", "playbook")
    found = answered(*([Result("", verdict=verdict(0.5))] for _ in names), authors=names)
    titles, lines = problem_table(found)
    assert [line[titles.index("author")] for line in lines] == list(names) and all(
        len(line) == len(titles) for line in lines
    )
    assert (
        "winners: 2 by playbook, 1 by torch.compile" in remarks(found)
        and "by" not in problem_table(made(verdict(0.5)))[0]
    )


def test_where_nobody_asked_nothing_is_said() -> None:
    found = made(verdict(0.5))
    assert "J per call" not in problem_table(found)[0] and "energy" not in " ".join(remarks(found))


def test_json_carries_it_without_the_windows() -> None:
    metered = verdict(0.5, 0.8)
    assert metered.energy
    found = made(
        replace(
            metered,
            energy=replace(
                metered.energy, windows=(EnergyWindow("candidate", 0.0, 10.0, 1.0, 50, 0.02, 0.01),)
            ),
        )
    )
    data = json.loads(json.dumps(found.to_json()))
    energy = data["rows"][0]["energy"]
    assert energy["ratio"]["energy"]["value"] == pytest.approx(0.4) and energy["windows"] == []
    assert data["energy"]["compile"]["problems"] == 1
    assert Scoreboard.from_json(data) == found


def test_a_ledger_and_a_board_from_before_energy_are_read(tmp_path: Path) -> None:
    line = LoggedResult("1", Result("1", verdict=verdict(0.5))).to_json()
    del line["result"]["verdict"]["energy"]
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    with ResultsLog(tmp_path) as ledger:
        assert not ledger.unreadable_lines
        found = make_scoreboard(
            "mine",
            "kernels",
            "cuda",
            [Problem(1, 1, Task("", "1_task"))],
            {(1, 1): ["1"]},
            ledger.entries,
            BenchConditions(),
        )
    assert found.rows[0].status == "passed" and found.rows[0].energy is None
    old = found.to_json()
    del old["energy"], old["rows"][0]["energy"]
    assert Scoreboard.from_json(old) == found


def test_what_was_lost_is_not_judged_and_in_no_mean() -> None:
    """The best of a problem's samples may be the one that was lost, unless another passed."""
    lost = Result("", verdict=Verdict("k", Status.CRASHED, "the worker died"), lost="killed by SIGKILL")
    wrong, passed = (Result("", verdict=v) for v in (Verdict("k", Status.WRONG, "off"), verdict(0.5)))
    found = answered([lost], [wrong, lost], [passed, lost], [wrong])
    assert [(row.problem, row.status) for row in found.rows] == [
        ("1/3 task", "passed"),
        ("1/4 task", "wrong"),
    ]
    assert (found.summary["best"].problems, found.summary["best"].correct) == (2, 1)
    lines = remarks(found)
    assert "2 excluded from all means, 2 of them because they could not be run or judged:" in lines
    assert "  1/1 task: not judged: killed by SIGKILL" in lines


def test_only_what_is_unsettled_is_asked_again(tmp_path: Path) -> None:
    crashed = Verdict("k", Status.CRASHED, "it died")
    with ResultsLog(tmp_path) as ledger:
        ledger.add(LoggedResult("lost", Result("", verdict=crashed, lost="killed")))
        ledger.add(LoggedResult("failed", Result("", error="no memory")))
        ledger.add(LoggedResult("crashed", Result("", verdict=crashed)))
        assert [ledger.is_missing(key, True) for key in ("lost", "failed", "crashed")] == [True, True, False]
        assert not ledger.is_missing("lost", False)


def test_without_a_kernel_a_problem_counts_only_if_it_can_be_scored() -> None:
    passed, broken = Result("", verdict=verdict(0.5)), Result("", error="no such module")
    unreadable = Result("", verdict=Verdict("k", Status.BUILD_FAILED, "no text"))
    found = answered(
        [passed],
        [probe_result(True)],
        [probe_result(True), unreadable],
        [probe_result(False)],
        [probe_result(False), unreadable],
        [broken],
    )
    assert [row.status for row in found.rows] == ["passed", "no kernel", "build_failed"]
    assert [row.samples for row in found.rows] == [1, 0, 1]
    assert [row.status for row in found.excluded] == ["not_scorable", "not_scorable", "not run"]
    assert [row.reason for row in found.excluded] == ["random", "random", "no such module"]
    assert found.summary["best"].problems == 3 and found.machines == ("H200, torch 2.9",)
    assert "total: 0 s of device time, no tokens" in remarks(found)


def test_a_probe_says_what_it_was_measured_on() -> None:
    def probed(*results: Result) -> list[probe.ProbeRow]:
        problems = [Problem(1, number, Task("", f"{number}_task")) for number in range(1, len(results) + 1)]
        entries = {str(number): LoggedResult(str(number), result) for number, result in enumerate(results, 1)}
        return probe.probe_rows(problems, {(1, int(key)): [key] for key in entries}, entries)

    alike, mixed = (
        probed(probe_result(True), probe_result(False)),
        probed(probe_result(True), probe_result(True, "L4"), Result("", error="no")),
    )
    assert alike[0].to_json()["hardware"] == "H200" and alike[0].torch == "2.9"
    assert (
        probe.remarks(alike)[-1] == "measured on H200, torch 2.9"
        and "measured on" not in probe.table(alike)[0]
    )
    assert probe.remarks(mixed)[-1].startswith("NOT COMPARABLE")
    titles, lines = probe.table(mixed)
    assert [line[titles.index("measured on")] for line in lines] == ["H200, torch 2.9", "L4, torch 2.9", ""]
