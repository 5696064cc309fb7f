"""Finding problems and their kernels; asking for what is not there gives one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelpro.records import BadInput, BuildData, Result
from kernelpro.suites import kernel_files
from kernelpro.suites.problems import ProblemRange, find_problems, interleave, parse_ids
from kernelpro.suites.results_log import LoggedResult, ResultsLog

TASK = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
KERNEL = "class ModelNew: ...\n"


def put(folder: Path, *paths: str, text: str = TASK) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_kernelbench_checkout_by_level_and_number(tmp_path: Path) -> None:
    put(
        tmp_path / "KernelBench",
        "level1/1_a.py",
        "level1/2_b.py",
        "level1/10_c.py",
        "level2/2_d.py",
        "changelog/x.md",
    )
    every = find_problems(str(tmp_path), (), "", "cuda")
    assert [p.label for p in every] == ["1/1 a", "1/2 b", "1/10 c", "2/2 d"], "by number, not by spelling"
    assert [p.label for p in find_problems(str(tmp_path), (1,), "2-12", "cuda")] == ["1/2 b", "1/10 c"]
    assert [p.label for p in find_problems(str(tmp_path), (), "2", "cuda")] == ["1/2 b", "2/2 d"]


def test_a_folder_of_tasks_leaves_other_files_alone(tmp_path: Path) -> None:
    put(tmp_path, "softmax.py", "norm/task.py")
    put(tmp_path, "norm/cpp_fast.py", "notes.py", text=KERNEL)
    assert [p.label for p in find_problems(str(tmp_path), (), "", "cpu")] == ["1 softmax", "2 norm"]


@pytest.mark.parametrize(
    ("levels", "ids", "message"),
    [
        ((7,), "", "no such level; it has: 1"),
        ((), "2-x", "`2-x` is not a number or range"),
        ((), "5-2", "`5-2` is not a number or range"),
        ((), "1,99", "no problem 99"),
        ((), "2-4", "no problem 2-4"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, levels: tuple[int, ...], ids: str, message: str) -> None:
    put(tmp_path, "level1/1_a.py")
    with pytest.raises(BadInput, match=message):
        find_problems(str(tmp_path), levels, ids, "cpu")


def test_a_suite_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither `builtin` nor a folder"):
        find_problems(str(tmp_path / "nowhere"), (), "", "cpu")
    with pytest.raises(BadInput, match="no task in"):
        find_problems(str(tmp_path), (), "", "cpu")


def test_every_prefix_covers_all_levels() -> None:
    numbered = [(1, n) for n in range(4)] + [(2, n) for n in range(2)] + [(3, n) for n in range(4)]
    order = interleave(numbered, lambda item: item[0])
    assert sorted(order) == numbered
    assert [level for level, _ in order[:5]] == [1, 3, 2, 1, 3]
    assert [number for level, number in order if level == 1] == [0, 1, 2, 3]


def test_ranges() -> None:
    assert (
        parse_ids("1-3, 2/7") == [ProblemRange("1-3", None, range(1, 4)), ProblemRange("2/7", 2, range(7, 8))]
        and parse_ids("") == []
    )


def test_kernels_in_the_layout_of_kernelbench(tmp_path: Path) -> None:
    suite = put(tmp_path / "suite", "level1/1_a.py", "level1/2_b.py")
    names = (
        "level_1_problem_1_sample_0_kernel.py",
        "level_1_problem_1_sample_3_kernel.py",
        "level_2_problem_1_sample_0_kernel.py",
    )
    run = put(tmp_path / "run", *names, text=KERNEL)
    problems = find_problems(str(suite), (), "", "cpu")
    found = kernel_files.find_kernels(run, problems)
    assert {place: list(samples) for place, samples in found.kernels.items()} == {(1, 1): [0, 3]}
    assert found.unmatched == ["level_2_problem_1_sample_0_kernel.py"]
    one = kernel_files.find_kernels(run, problems, sample=3)
    assert list(one.kernels[1, 1]) == [3] and one.unmatched == found.unmatched, (
        "a sample that is not asked for is no stray"
    )
    with pytest.raises(BadInput, match="no file belongs to a selected problem"):
        kernel_files.find_kernels(run, problems, sample=4)
    with pytest.raises(BadInput, match=r"give one of its folders: run$"):
        kernel_files.find_kernels(tmp_path, problems)


def test_kernels_named_like_the_tasks(tmp_path: Path) -> None:
    suite = put(tmp_path / "suite", "level1/1_a.py", "level1/2_b.py", "level2/1_a.py", "level2/3_c.py")
    mine = put(
        tmp_path / "mine", "level1/1_a.py", "2_b/first.py", "2_b/second.py", "level2/1_a.py", text=KERNEL
    )
    found = kernel_files.find_kernels(mine, find_problems(str(suite), (), "", "cpu"))
    assert not found.unmatched
    assert {place: [c.name for c in samples.values()] for place, samples in found.kernels.items()} == {
        (1, 1): ["1_a.py"],
        (1, 2): ["first.py", "second.py"],
        (2, 1): ["1_a.py"],
    }


def test_a_ledger_survives_a_line_that_was_cut_short(tmp_path: Path) -> None:
    with ResultsLog(tmp_path) as ledger:
        ledger.add(LoggedResult("a", Result("a", error="no")))
        ledger.add(LoggedResult("b", Result("b", data=BuildData(reason="x"))))
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with ResultsLog(tmp_path) as ledger:
        assert list(ledger.entries) == ["a"] and ledger.unreadable_lines == 1
        assert (
            ledger.is_missing("b", retry=False)
            and not ledger.is_missing("a", retry=False)
            and ledger.is_missing("a", retry=True)
        )
        ledger.add(LoggedResult("b", Result("b", data=BuildData(reason="y"))))
    with ResultsLog(tmp_path) as ledger:
        assert ledger.entries["b"].result.data == BuildData(reason="y")
        with pytest.raises(BadInput, match="another process uses"):
            ResultsLog(tmp_path)
