"""Kernels with randomly planted defects, recorded with their healthy twins on an H200, on two ARM cores and on
two cores of a Xeon: ranks and gains."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from planted.score import CaseScore, lacks_counters, score, summarize  # noqa: E402
from planted_defects import read  # noqa: E402

RECORD = ROOT / "benchmarks/results/2026-11-18-h200-planted.jsonl.gz"
CPU_RECORD = ROOT / "benchmarks/results/2026-11-18-cpu-planted.jsonl.gz"
X86_RECORD = ROOT / "benchmarks/results/2026-11-18-x86-planted.jsonl.gz"
QUIET_X86_RECORD = ROOT / "benchmarks/results/2026-11-19-x86-planted-2.jsonl.gz"


@cache
def scores(record: Path = RECORD) -> tuple[CaseScore, ...]:
    return tuple(score(row) for row in read([record]) if "profiles" in row and not lacks_counters(row))


def test_the_planted_defect_comes_first() -> None:
    result = summarize(list(scores()))
    assert result["single"] >= 60 and result["pairs"] >= 15
    assert result["single_first"] >= 0.92 and result["single_in_three"] >= 0.99
    assert result["pairs_in_three"] >= 0.85


def test_expected_gains_are_those_of_the_healthy_twins() -> None:
    result = summarize(list(scores()))
    assert 0.9 <= result["gain_median"] <= 1.1
    assert result["gain_within"] >= 0.9


def test_a_copy_and_a_slow_kernel_share_no_parts() -> None:
    pairs = [one for one in scores() if "cast" in one.defects and "column_walk" in one.defects]
    assert len(pairs) >= 2
    assert all(one.predicted and 0.6 <= one.predicted / one.measured <= 1.5 for one in pairs)


def test_no_page_is_empty_and_every_account_adds_up() -> None:
    result = summarize(list(scores()))
    assert result["empty_pages"] == 0
    assert result["account_error"] < 0.03


def test_on_the_cpu_the_planted_defect_comes_first_and_no_twin_is_accused() -> None:
    result = summarize(list(scores(CPU_RECORD)))
    assert result["cases"] >= 200 and result["single_first"] >= 0.92 and result["single_in_three"] >= 0.98
    assert result["pairs_in_three"] >= 0.85 and result["healthy_severe"] == 0
    assert 0.9 <= result["gain_median"] <= 1.1
    assert result["empty_pages"] == 0 and result["account_error"] < 0.03
    assert result["gain_within"] >= 0.88


def test_on_an_x86_cpu_the_planted_defect_comes_first() -> None:
    result = summarize(list(scores(X86_RECORD)))
    assert result["cases"] >= 300 and result["single_first"] >= 0.95 and result["single_in_three"] >= 0.97
    assert 0.9 <= result["gain_median"] <= 1.1 and result["gain_within"] >= 0.75
    assert result["pairs_in_three"] >= 0.85 and result["healthy_severe"] <= 0.005 * result["cases"]
    assert result["empty_pages"] == 0 and result["account_error"] < 0.03


def test_on_a_quiet_x86_cpu_gains_are_those_of_the_healthy_twins() -> None:
    result = summarize(list(scores(QUIET_X86_RECORD)))
    assert result["cases"] == 100 and result["single_first"] == 1.0 and result["healthy_severe"] == 0
    assert 0.9 <= result["gain_median"] <= 1.1 and result["gain_within"] >= 0.9
    assert result["empty_pages"] == 0 and result["account_error"] < 0.03
