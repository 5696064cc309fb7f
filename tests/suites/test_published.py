"""Published kernels: both layouts, judged on the CPU, interrupted and continued."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from in_process import WarmCommand

from kernelpro.records import BadInput
from kernelpro.suites.published import find_published

REFERENCE = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
KERNEL = """import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {}
"""
RIGHT, WRONG = KERNEL.format("x.tanh()"), KERNEL.format("x.tanh() * 1.01")


def json_lines(path: Path, *kernels: str | None) -> Path:
    lines = [
        {"level_id": 1 + number // 2, "task_id": number, "ref_code": REFERENCE, "custom_code": kernel}
        | {"score_default": 2.5, "score_torch_compile_default": None}
        for number, kernel in enumerate(kernels, 1)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def pairs(folder: Path, **kernels: str) -> Path:
    for name, kernel in kernels.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "ref.py").write_text(REFERENCE)
        (folder / name / "src.py").write_text(kernel)
    return folder


@pytest.fixture
def bench(warm_kernelpro: WarmCommand) -> Callable[..., CompletedProcess[str]]:
    def run(path: Path, out: Path, *more: str) -> CompletedProcess[str]:
        options = ["--target", "cpu", "--quick", "--no-baseline", "compile", "--out", out, *more]
        return warm_kernelpro("bench", f"kernels:{path}", *options)

    return run


def keys(out: Path) -> list[Any]:
    return [json.loads(line)["key"] for line in (out / "results.jsonl").read_text().splitlines()]


def test_json_lines_with_claims_leave_out_problems_without_a_kernel(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "h100.json", RIGHT, None, "# no model", WRONG)
    kernels = find_published(f"kernels:{path}", (), "", "cpu")
    assert [kernel.id for kernel in kernels] == ["1/1", "3/4"]
    assert [kernel.claimed for kernel in kernels] == [{"eager": 2.5}] * 2, "claims without a value are none"
    assert [kernel.problem.task.name for kernel in kernels] == ["h100_1_1", "h100_3_4"]
    assert [kernel.id for kernel in find_published(f"kernels:{path}", (3,), "4", "cpu")] == ["3/4"]


def test_a_folder_of_pairs_with_claims_beside_them(tmp_path: Path) -> None:
    folder = pairs(tmp_path, softmax=RIGHT, norm=WRONG)
    (folder / "alone").mkdir()
    (folder / "alone" / "src.py").write_text(RIGHT)
    (folder / "claimed.json").write_text(json.dumps({"norm": 4.84}))
    kernels = find_published(f"kernels:{folder}", (), "", "cpu")
    assert [(kernel.id, kernel.claimed) for kernel in kernels] == [("norm", {"eager": 4.84}), ("softmax", {})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "line 1: no object with level_id.*; level_id is missing"),
        ("[1]\n", "line 1: no object with level_id"),
        ("", "no kernel in"),
        ("\nx", "line 2: not JSON"),
        ('{"level_id": "a", "task_id": 1, "ref_code": ""}', "line 1: level_id and task_id must be integers"),
        ('{"level_id": 1, "task_id": 1, "ref_code": 7}', "line 1: ref_code must be"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    (path := tmp_path / "kernels.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        find_published(f"kernels:{path}", (), "", "cpu")


def test_two_kernels_for_a_problem_are_rejected(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "kernels.json", RIGHT)
    path.write_text(2 * path.read_text())
    with pytest.raises(BadInput, match="line 2: another kernel for problem 1/1 is in line 1"):
        find_published(f"kernels:{path}", (), "", "cpu")


def test_a_collection_that_does_not_exist_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither a file of JSON lines nor a folder of pairs"):
        find_published(f"kernels:{tmp_path / 'missing'}", (), "", "cpu")


def test_claimed_beside_measured_and_only_what_is_missing_runs_again(
    tmp_path: Path, bench: Callable[..., CompletedProcess[str]]
) -> None:
    path, out = json_lines(tmp_path / "h100.json", RIGHT, WRONG), tmp_path / "out"
    assert bench(path, out, "--ids", "1").returncode == 0
    (first,) = keys(out)
    results = out / "results.jsonl"
    results.write_text(results.read_text() + '{"key": "cut of')  # killed while it wrote a line

    process = bench(path, out, "--format", "json")
    assert process.returncode == 0, process.stderr
    assert "1 of 2 have a result already" in process.stderr
    assert [line["key"] for line in map(json.loads, results.read_text().splitlines()[2:])] != [first]
    data = json.loads(process.stdout)
    right, wrong = data["kernels"]
    assert (right["id"], right["status"], right["claimed"]) == ("1/1", "passed", {"eager": 2.5})
    assert right["speedup"].keys() == {"eager_fp32", "best"} and right["own_share"] == 0
    assert (wrong["id"], wrong["status"], wrong["speedup"]) == ("2/2", "wrong", {})
    assert "2 kernels: 1 passed, 1 wrong" in data["summary"]

    written = bench(path, out, "--format", "md")
    assert "2 of 2 have a result already" in written.stderr, "the table is made from what is there"
    assert "| kernel | claimed x eager | verdict | x eager_fp32 | x best |" in written.stdout
    assert "- claimed over eager: 2.50 (geomean of 1 that passed); measured: " in written.stdout


def test_kernels_cannot_be_given_for_a_collection(
    tmp_path: Path, bench: Callable[..., CompletedProcess[str]]
) -> None:
    process = bench(json_lines(tmp_path / "h100.json", RIGHT), tmp_path / "out", "--kernels", str(tmp_path))
    assert process.returncode == 2 and "has kernels of its own" in process.stderr
