"""Whole runs with the real judge on the CPU: what is tried, kept, recognised, resumed, and won."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelpro.authors.author import Assignment, Draft, NoIdea, Waiting
from kernelpro.engine.loop import Engine, Paused
from kernelpro.engine.store import Store
from kernelpro.pools.local import Pool
from kernelpro.records import Limits, Options, Outcome, RunConfig, Status, Task

ROOT = Path(__file__).parents[2]
TASK = Task(
    """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.randn(64, 1024)]

def get_init_inputs():
    return []
""",
    "relu",
)
KERNEL = '''
import torch
from kernelpro import runtime

TIMES = {times}  # tune: 1, {times}
lib = runtime.cpp(r"""
extern "C" void go(const float* x, float* y, long n, int times) {{
    for (int again = 0; again < times; ++again) {{
        asm volatile("" ::: "memory");
        for (long i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * 2 + {added};
    }}
}}
""")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel(), TIMES)
        return y
'''


def kernel(times: int, added: str = "1", tuned: bool = False) -> str:
    text = KERNEL.format(times=times, added=added)
    return text if tuned else text.replace(f"  # tune: 1, {times}", "")


class Script:
    """An author that has all its answers ready; some come late, none depends on who is faster."""

    name = "script"

    def __init__(self, *sources: str):
        self._sources = sources
        self.asked: list[Assignment] = []

    async def write(self, assignment: Assignment) -> Draft:
        self.asked.append(assignment)
        await asyncio.sleep(random.random() / 50)
        if assignment.step > len(self._sources):
            raise NoIdea("the script is at its end")
        return Draft(self._sources[assignment.step - 1], plan=f"version {assignment.step}", author="script")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as made:
        yield made


def config(policy: str = "best-of-n", candidates: int = 10, **more: object) -> RunConfig:
    options = Options(effort="quick", baselines=("eager_fp32",))
    limits = Limits(candidates, floor_share=0.0)
    return RunConfig(TASK, "cpu", "script", policy=policy, limits=limits, options=options, finalists=1, **({"compiler": False} | more))  # type: ignore[arg-type]


def run(store: Store, pool: Pool, author: object) -> tuple[Outcome, Engine]:
    engine = Engine(store, pool, author)  # type: ignore[arg-type]
    return asyncio.run(engine.run()), engine


def test_a_run_tries_recognises_and_names_a_winner(tmp_path: Path, pool: Pool) -> None:
    store = Store.create(tmp_path, config(tune_points=0), "demo")
    again = kernel(10, added="1 /* said differently */")
    author = Script(kernel(40), kernel(1, added="2"), kernel(10), "# the same\n" + kernel(10), "def (", again)
    outcome, _ = run(store, pool, author)
    steps = store.steps()
    statuses = [step.verdict.status if step.verdict else step.note for step in steps[:6]]
    assert statuses[:5] == [Status.PASSED, Status.WRONG, Status.PASSED, "a duplicate of step 3", Status.BUILD_FAILED]
    assert statuses[5] == "a duplicate of step 3: it compiles to the same instructions"
    assert outcome.best == 3 and outcome.verdict and outcome.verdict.status is Status.PASSED
    assert "no further idea" in outcome.reason and all(step.stage == "settled" for step in steps)
    settled = [data["step"] for _, _, data in store.events("settled")]
    assert settled == [step.number for step in steps], "results are settled in the order of choosing"


def test_tunables_are_searched_and_written_back(tmp_path: Path, pool: Pool) -> None:
    store = Store.create(tmp_path, config(candidates=1, tune_points=4), "demo")
    run(store, pool, Script(kernel(60, tuned=True)))
    (step,) = store.steps()
    assert step.source != step.final_source and "tune:" not in store.source(step.final_source)
    assert step.details["tuned"]["point"] == {"TIMES": 1}
    assert "TIMES = 1" in store.source(step.final_source)


def test_an_improvement_is_asked_for_with_the_diagnosis_of_its_parent(tmp_path: Path, pool: Pool) -> None:
    store = Store.create(tmp_path, config("greedy", candidates=2, in_flight=1, tune_points=0), "demo")
    author = Script(kernel(30), kernel(5))
    run(store, pool, author)
    seed, improve = author.asked
    assert seed.action == "seed" and seed.parent is None and seed.baselines and seed.hardware["name"]
    assert improve.action == "improve" and improve.parent and improve.parent.number == 1
    assert "Bound by" in improve.guidance and "Time of a call" in improve.evidence
    assert store.steps()[0].diagnosis is not None


def test_a_run_that_waits_for_answers_goes_on_where_it_was(tmp_path: Path, pool: Pool) -> None:
    store = Store.create(tmp_path, config(candidates=2, tune_points=0), "demo")
    with pytest.raises(Paused, match="1 answers are outstanding"):
        asyncio.run(Engine(store, pool, _Reluctant(kernel(9), kernel(3))).run())
    assert [step.stage for step in store.steps()] in (["settled", "chosen"], ["judged", "chosen"])
    outcome, _ = run(Store.open(tmp_path, store.id), pool, Script(kernel(9), kernel(3)))
    assert outcome.best == 2 and [step.stage for step in store.steps()] == ["settled", "settled"]


class _Reluctant(Script):
    async def write(self, assignment: Assignment) -> Draft:
        if assignment.step == 2:
            raise Waiting("not yet")
        return await super().write(assignment)


def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    """One kill here; fifty in benchmarks/kill_runs.py, which this runs."""
    command = [sys.executable, str(ROOT / "benchmarks" / "kill_runs.py"), "--kills", "1", "--candidates", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
