"""`kernelpro bench` for real, on a suite of five small problems: killed in the middle, called again, read as table and JSON."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import in_process
import pytest
import torch
from in_process import WarmCommand
from llm.asking import unanswered

import kernelpro
from kernelpro.api import OptimizationResult
from kernelpro.engine.store import RunStore
from kernelpro.lab.energy.counter import NoEnergyCounter, RaplCounter
from kernelpro.records import BadInput, Options, Result, Status
from kernelpro.suites import problems
from kernelpro.suites.judging import BenchJob
from kernelpro.suites.results_log import LoggedResult, ResultsLog

TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {what}
TARGET = "cuda"
SIZES = {{"cuda": (100000,), "cpu": (128,)}}
(n,) = SIZES[TARGET]
def get_inputs():
    return [torch.randn(n, n)]
def get_init_inputs():
    return []
"""
KERNEL = """import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {what}
"""
PROBLEMS = {
    "1_square": "x * x",
    "2_scale": "torch.tanh(x)",
    "3_random": "torch.rand_like(x) + x",
    "4_sine": "torch.sin(x)",
    "5_broken": "x +",
}
KERNELS = {"1_square": "x.square()", "2_scale": "torch.tanh(x * 1.01)", "3_random": "x + 0.5"}


@pytest.fixture(scope="module")
def no_counter() -> str:
    try:
        RaplCounter()
    except NoEnergyCounter as reason:
        return str(reason)
    pytest.skip("this CPU counts energy")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "tasks" / "level1").mkdir(parents=True)
    (folder / "kernels").mkdir()
    for name, what in PROBLEMS.items():
        (folder / "tasks" / "level1" / f"{name}.py").write_text(TASK.format(what=what))
    for name, what in KERNELS.items():
        (folder / "kernels" / f"level_1_problem_{name[0]}_sample_0_kernel.py").write_text(
            KERNEL.format(what=what)
        )
    (folder / "kernels" / "level_1_problem_4_sample_0_kernel.py").write_bytes(b"# \xff")
    (folder / "kernels" / "stray.py").write_text(KERNEL.format(what="x"))
    return folder


def command(suite: Path, *more: str) -> list[str]:
    place = [
        str(suite / "tasks"),
        "--target",
        "cpu",
        "--quick",
        "--no-baseline",
        "compile",
        "--out",
        str(suite / "out"),
    ]
    return [sys.executable, "-m", "kernelpro", "bench", *place, *more]


def bench(suite: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(suite, *more), capture_output=True, text=True, timeout=900)


def bench_in_process(suite: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The same where no worker is needed."""
    return in_process.kernelpro(*command(suite, *more)[3:])


def answered(suite: Path) -> list[dict[str, Any]]:
    path = suite / "out" / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_killed_in_the_middle_it_goes_on_and_asks_nothing_twice(
    suite: Path, warm_kernelpro: WarmCommand
) -> None:
    kernels = ("--kernels", str(suite / "kernels"))
    process = subprocess.Popen(command(suite, *kernels), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not answered(suite) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = answered(suite)
    assert 1 <= len(before) < len(PROBLEMS), "it was in the middle"

    second = warm_kernelpro(*command(suite, *kernels, "--format", "json")[3:])
    assert second.returncode == 0, second.stderr
    assert f"{len(before)} of {len(PROBLEMS)} have a result already" in second.stderr
    assert "1 file belongs to no selected problem: stray.py" in second.stderr
    assert re.search(r"^1/5 broken: .*\n[2-5] of 5 done: 1/5 broken$", second.stderr, re.MULTILINE), (
        "told twice"
    )
    assert "1 could not be run or judged: --retry repeats them" in second.stderr
    after = answered(suite)
    assert len(after) == len({entry["key"] for entry in after}) == len(PROBLEMS) + 1, (
        "one kernel is no text, and its problem is probed"
    )
    assert after[: len(before)] == before

    board = json.loads(second.stdout)
    rows = {row["problem"]: row for row in board["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "1/1 square": "passed",
        "1/2 scale": "wrong",
        "1/4 sine": "build_failed",
    }
    assert "not UTF-8" in rows["1/4 sine"]["reason"]
    left_out = {row["problem"]: (row["status"], row["reason"]) for row in board["excluded"]}
    assert [status for status, _ in left_out.values()] == ["not_scorable", "not run"]
    assert "random" in left_out["1/3 random"][1] and "syntax error" in left_out["1/5 broken"][1]
    best = board["summary"]["best"]
    speedup = rows["1/1 square"]["speedup"]["eager_fp32"]
    assert (best["problems"], best["correct"]) == (3, 1) and best["geomean"]["value"] == pytest.approx(
        speedup["value"]
    )
    assert best["fast"]["1"] == pytest.approx((speedup["value"] > 1) / 3)
    assert best["correct_rate"] == pytest.approx(1 / 3) and rows["1/1 square"]["precision"] == "fp32"
    terms = board["conditions"]
    assert (terms["effort"], terms["mode"], terms["baselines"], terms["precision"]) == (
        "quick",
        "train",
        ["eager_fp32"],
        None,
    )
    assert terms["version"] == kernelpro.__version__ and datetime.fromisoformat(terms["date"])
    assert board["seconds"] > 0 and len(board["machines"]) == 1 and not board["pending"]

    third = bench_in_process(suite, *kernels, "--format", "md")
    assert third.returncode == 0 and answered(suite) == after, "nothing was left to ask"
    assert "| 1/2 scale | wrong |" in third.stdout and "1/3 random: not_scorable" in third.stdout
    assert "| best | 3 | 33% |" in third.stdout
    assert "- effort quick, precision default, mode train, baselines eager_fp32; KernelPro" in third.stdout


def test_where_nothing_could_be_run_it_says_how_to_ask_again(suite: Path) -> None:
    (broken,) = problems.find_problems(str(suite / "tasks"), (), "5", "cpu")
    question = BenchJob(broken, "cpu", Options(effort="quick", baselines=("eager_fp32", "eager_tf32")))
    with ResultsLog(suite / "out") as ledger:
        ledger.add(LoggedResult(question.key, Result(question.key, error="syntax error")))
    found = bench_in_process(suite, "--probe", "--ids", "5")
    assert found.returncode == 1 and "1 could not be run or judged: --retry repeats them" in found.stderr


def test_problems_are_named_without_anything_being_done(suite: Path) -> None:
    done = in_process.kernelpro(*command(suite, "--list", "--ids", "2-4")[3:])
    assert done.returncode == 0 and done.stdout == "1/2 scale\n1/3 random\n1/4 sine\n" and not done.stderr
    done = in_process.kernelpro(*command(suite, "--list", "--probe")[3:])
    assert done.returncode == 2 and "give exactly one of --probe" in done.stderr


def test_a_model_that_nobody_would_ask_is_refused(suite: Path) -> None:
    done = in_process.kernelpro(
        *command(suite, "--author", "playbook", "--model", "inbox:x", "--ids", "2")[3:]
    )
    assert done.returncode == 2 and done.stderr.startswith(
        "kernelpro: --author and --model exclude each other"
    )


@pytest.mark.long  # a worker is started only to be asked
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_target_that_is_not_there_is_no_answer(suite: Path) -> None:
    found = bench(suite, "--probe", "--target", "cuda", "--out", str(suite / "unasked"))
    assert (
        found.returncode == 2
        and "no CUDA device" in found.stderr
        and len(found.stderr.strip().splitlines()) == 1
    )
    assert not (suite / "unasked" / "results.jsonl").read_text()


def test_sigterm_ends_it_as_an_interrupt_does_and_it_shows_what_is_answered(
    suite: Path, tmp_path: Path
) -> None:
    scale, _ = problems.find_problems(str(suite / "tasks"), (), "2,4", "cpu")
    question = BenchJob(scale, "cpu", Options(effort="quick", baselines=("eager_fp32", "eager_tf32")))
    with ResultsLog(tmp_path / "out") as ledger:
        ledger.add(LoggedResult(question.key, Result(question.key, error="the machine was switched off")))
    more = (
        "--probe",
        "--ids",
        "2,4",
        "--pool",
        f"spool:{tmp_path / 'spool'}",
        "--wait",
        "--out",
        str(tmp_path / "out"),
    )
    process = subprocess.Popen(
        command(suite, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("spool/jobs/*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()  # SIGINT is ignored by whoever is started in the background of a script
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 130 and "results.jsonl" in told and told.endswith("kernelpro: stopped\n")
    assert "1/2 scale" in shown and "the machine was switched off" in shown and "1/4 sine" in shown


def test_the_probe_through_a_spool_says_which_cannot_be_scored(suite: Path) -> None:
    """Nobody works on the spool at first: the bench stops, and goes on when results are there."""
    spool = suite / "spool"
    more = ("--probe", "--ids", "1,3", "--pool", f"spool:{spool}")
    first = bench_in_process(suite, *more)
    assert first.returncode == 3 and "2 answers or results are outstanding" in first.stderr
    assert "2 problems: 0 can be scored, 0 cannot, 2 not run or without a result yet" in first.stdout
    subprocess.run(
        [sys.executable, "-m", "kernelpro", "worker", str(spool), "--once"], check=True, timeout=300
    )
    found = bench_in_process(suite, *more)
    assert found.returncode == 0, found.stderr
    assert "2 problems: 1 can be scored, 1 cannot, 0 not run or without a result yet" in found.stdout
    assert f", torch {torch.__version__}" in found.stdout


def test_an_author_has_a_run_for_each_problem(suite: Path, warm_kernelpro: WarmCommand) -> None:
    files = suite / "written"
    files.mkdir()
    (files / "a.py").write_text(KERNEL.format(what="x.square()"))
    more = (
        "--author",
        f"files:{files}",
        "--budget",
        "candidates=1",
        "--no-compile-seed",
        "--ids",
        "1,2",
        "--format",
        "json",
    )
    more += ("--concurrency", "1", "--tune-points", "3", "--finalists", "0")
    stopped = warm_kernelpro(*command(suite, *more, "--time-limit", "1")[3:])
    assert stopped.returncode == 3 and "outstanding; the same command continues" in stopped.stderr
    first = warm_kernelpro(*command(suite, *more)[3:])
    assert first.returncode == 0, first.stderr
    rows = {row["problem"]: row for row in json.loads(first.stdout)["rows"]}
    assert rows["1/1 square"]["status"] == "passed" and rows["1/2 scale"]["status"] == "wrong"
    assert [row["author"] for row in rows.values()] == ["a.py", ""], "nobody has won where nothing is right"
    runs = [path.parent for path in (suite / "out" / "runs").glob("*/run.db")]
    configs = [RunStore(run).config() for run in runs]
    assert [(c.concurrency, c.tune_points, c.finalists) for c in configs] == [(1, 3, 0), (1, 3, 0)]
    told = re.search(r"kernelpro (report RUN --runs-dir .*)`", first.stderr)
    assert told, first.stderr
    words = shlex.split(told[1].replace("RUN", runs[0].name))
    made = in_process.kernelpro(*words)
    assert made.stdout.strip() == str(runs[0] / "report.html") and (runs[0] / "report.html").is_file(), (
        made.stderr
    )
    assert "2 of 2 have a result already" in bench_in_process(suite, *more).stderr


@pytest.mark.long  # tests/llm has two runs with one folder; this is a whole bench, twice
def test_one_inbox_serves_all_problems(suite: Path, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    more = (
        "--model",
        f"inbox:{inbox}",
        "--budget",
        "candidates=1",
        "--no-compile-seed",
        "--ids",
        "1,2",
    )
    first = bench(suite, *more)
    assert first.returncode == 3 and "2 answers or results are outstanding" in first.stderr
    questions = unanswered(inbox)
    assert [path.name[:6] for path in questions] == ["1-1-sq", "1-2-sc"], "each run has its own file"
    for path in questions:
        what = "x.square()" if "x * x" in path.read_text() else "torch.tanh(x)"
        answer = f"plan: as it is\nhypothesis: memory\n\n```python\n{KERNEL.format(what=what)}```\n"
        path.with_suffix(".answer.md").write_text(answer)
    second = bench(suite, *more, "--format", "json")
    assert second.returncode == 0, second.stderr
    assert [row["status"] for row in json.loads(second.stdout)["rows"]] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "give exactly one of"),
        (("--probe", "--ids", "9"), "no problem 9"),
        (("--probe", "--ids", "1/2,2/2"), "no problem 2/2"),
        (("--kernels", "/nowhere"), "not a folder"),
        (("--author", "nobody"), "--author nobody: use playbook or files:DIR"),
        (("--author", "playbook", "--objective", "least"), "is not one of 'speed', 'energy-at-speed', 'edp'"),
        (("--author", "playbook", "--energy"), "--energy needs --kernels"),
        (("--probe", "--objective", "edp"), "--objective edp needs --author or --model"),
        (("--author", "playbook", "--speed-tolerance", "5"), "--speed-tolerance needs --objective"),
    ],
)
def test_misuse_is_one_line(suite: Path, more: tuple[str, ...], message: str) -> None:
    found = in_process.kernelpro(*command(suite, *more)[3:])
    assert found.returncode == 2 and message in found.stderr and len(found.stderr.strip().splitlines()) == 1


@pytest.mark.long  # lab/energy has it of one kernel
def test_energy_is_asked_for_each_kernel_and_what_is_not_told_says_why(suite: Path, no_counter: str) -> None:
    kernels = ("--kernels", str(suite / "kernels"), "--ids", "1", "--format", "md")
    plain, metered = bench(suite, *kernels), bench(suite, *kernels, "--energy")
    assert "1 of 1 have a result already" not in metered.stderr, "another question"
    assert (
        "energy" not in plain.stdout
        and f"- energy not measured for 1/1 square: {no_counter}" in metered.stdout
    )


def test_a_language_of_another_target_is_refused_before_anything_is_begun(suite: Path) -> None:
    asked = command(suite, "--author", "playbook", "--language", "triton", "--out", str(suite / "never"))
    found = in_process.kernelpro(*asked[3:])
    message = "kernelpro: language triton: kernels for cpu are written in cpp"
    assert found.returncode == 2 and found.stderr.strip() == message
    assert not (suite / "never").exists()


def test_an_objective_that_cannot_be_measured_is_refused_before_anything_is_begun(
    suite: Path, no_counter: str, warm_kernelpro: WarmCommand
) -> None:
    asked = command(suite, "--author", "playbook", "--objective", "edp", "--out", str(suite / "never"))
    found = warm_kernelpro(*asked[3:])
    assert found.returncode == 2 and found.stderr.strip() == f"kernelpro: objective edp: {no_counter}"
    assert not (suite / "never").exists()


@pytest.mark.long  # the same refusal, by Python's way in
def test_python_refuses_an_objective_that_cannot_be_measured(suite: Path, no_counter: str) -> None:
    with pytest.raises(BadInput, match=f"^objective edp: {re.escape(no_counter)}$"):
        task = suite / "tasks" / "level1" / "1_square.py"
        kernelpro.optimize(task, target="cpu", objective="edp", runs_dir=suite / "never")
    assert not (suite / "never").exists()


@pytest.mark.long
def test_a_module_is_optimised_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(KERNEL.format(what="x * x").replace("ModelNew", "Square"))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("mine").Square()
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "a.py").write_text(KERNEL.format(what="x.square()"))
    told: list[str] = []

    def optimise() -> OptimizationResult:
        return kernelpro.optimize(
            module,
            [torch.randn(1024, 1024)],
            author=f"files:{tmp_path / 'written'}",
            compile_seed=False,
            speed_tolerance=0.05,
            candidates=1,
            target="cpu",
            options=Options(effort="quick", baselines=("eager_fp32",)),
            runs_dir=tmp_path / "runs",
            on_event=lambda event: told.append(getattr(event, "phase", event.kind)),
        )

    torch.manual_seed(1)
    found = optimise()
    assert (
        found.verdict
        and found.verdict.status is Status.PASSED
        and found.source == KERNEL.format(what="x.square()")
    )
    assert told.count("settled") == 1 and RunStore(found.run).config().speed_tolerance == 0.05
    torch.manual_seed(1)
    again = optimise()
    assert again.run == found.run and again.outcome == found.outcome, "a finished run is not begun again"
    assert told.count("settled") == 1
