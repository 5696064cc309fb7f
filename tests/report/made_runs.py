"""Runs as the engine leaves them in a store, made by hand: one of every kind that a report must tell of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.verdicts import verdict

from kernelpro.engine.store import RunStore
from kernelpro.records import (
    Bound,
    Cost,
    Diagnosis,
    Environment,
    Evidence,
    Finding,
    Gain,
    Hardware,
    Interval,
    Limits,
    Measurement,
    NoVerdict,
    Outcome,
    RunConfig,
    Severity,
    Skipped,
    Status,
    Step,
    StepDetails,
    Task,
    TaskFacts,
    Verdict,
    Work,
)
from kernelpro.records.events import RunFailed, RunStarted, StepProgress
from kernelpro.records.jobs import Tuning, TuningPoint
from kernelpro.records.profiling import LeastTimes, RooflinePosition

SOURCE = """import torch

BLOCK = {block}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x * 2 + {added}  # {remark}
"""
TASK = Task(
    "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2 + 1\n",
    "affine",
)
CONFIG = RunConfig(
    TASK,
    "cpu",
    "team",
    {"code": "openai:gpt-x"},
    limits=Limits(candidates=8, dollars=2.5),
    policy="greedy",
    seed=7,
    constants={"seeds": 2.0},
)
FACTS = TaskFacts(
    {"eager_fp32": 4.0, "compile": 2.0},
    0.5,
    "fp32",
    hardware=Hardware("a chip", 6e10, rates={"fp32": 7e10}, facts={"cores": "2"}),
    work=Work(15_000_000, 15_000_000, 0.0, 1e7),
)
FINDING = Finding(
    "cpu_scalar_code",
    "instruction",
    Severity.HIGH,
    (Evidence("vector instructions in the hot loop", 0.0, 1.0, "of 1"),),
    "the hot loop is scalar",
    ("give the compiler independent sums", "use intrinsics"),
    Gain(2.5, "four lanes at once"),
    where="kernel.cpp:9",
)


def near(value: float, spread: float = 0.02) -> Interval:
    return Interval(value, value * (1 - spread), value * (1 + spread))


def passed(number: int, ms: float, **more: object) -> Verdict:
    verdict = Verdict(
        f"step {number}",
        Status.PASSED,
        "correct; timed",
        error=3e-7,
        error_of_limit=0.25,
        tolerance=1.2e-6,
        times={"candidate": near(ms), "eager_fp32": near(4.0), "compile": near(2.0)},
        speedup={"eager_fp32": near(4.0 / ms), "compile": near(2.0 / ms)},
        faster="yes" if ms < 1.9 else "no",
        floor_ms=0.5,
        own_share=0.97,
        sandbox="namespaces",
        language="cpp",
        environment=Environment(kernelpro="0.1.0", cpu="a chip", torch="2.13.0", threads=2),
        measurement=Measurement(rounds=120, verified_calls=127, a_a=near(1.0, 0.01)),
    )
    return replace(verdict, **more)  # type: ignore[arg-type]


def failed(number: int, status: Status, reason: str) -> Verdict:
    return Verdict(f"step {number}", status, reason, sandbox="namespaces", language="cpp")


def diagnosis(*findings: Finding) -> Diagnosis:
    position = RooflinePosition(0.3, 1.2, 1e10, 3e10, 7e10, 6e10, 1.0, 0.5, 0.5, LeastTimes(0.5, 0.0, 0.1))
    skipped = (Skipped("hardware counters", "this machine offers none", "run on the bare machine"),)
    return Diagnosis(Bound.MEMORY, "medium", "bytes need 0.5 ms", position, findings, skipped)


def begun(home: Path, config: RunConfig = CONFIG, measured: bool = True) -> RunStore:
    store = RunStore.create(home, config, config.task.name)
    store.add_event(RunStarted())
    if measured:
        store.save_task_facts(FACTS)
    return store


def settle(store: RunStore, step: Step, block: int = 1, added: str = "1", remark: str = "as it is") -> Step:
    """Keep a step with a source of its own, settled."""
    key = store.save_source(SOURCE.format(block=block, added=added, remark=remark))
    step = replace(step, stage="settled", source=key, final_source=key)
    store.save_step(step)
    store.add_event(StepProgress(step.number, "settled"))
    return step


def searched(home: Path) -> RunStore:
    """A tree with an outcome of most kinds; not finished yet."""
    store = begun(home)
    compiler = Step(
        1, 0, "seed", plan="what torch.compile generates", author="torch.compile", verdict=passed(1, 2.0)
    )
    settle(store, compiler)
    first = Step(
        2,
        0,
        "seed",
        plan="one row at a time",
        hypothesis="memory, about 1 ms",
        author="gpt-x",
        cost=Cost(0.03, 2000, 900, 2),
    )
    settle(store, replace(first, verdict=passed(2, 3.0), diagnosis=diagnosis(FINDING)), 2)
    lanes = Step(
        3,
        2,
        "improve",
        plan="sixteen sums",
        hypothesis="the chain goes",
        author="gpt-x",
        cost=Cost(0.05, 4000, 800, 2),
    )
    details = StepDetails(expected_speedup=2.0, diagnostic="cpu_scalar_code", device_seconds=12.5)
    settle(store, replace(lanes, verdict=passed(3, 1.0), details=details, diagnosis=diagnosis(FINDING)), 16)
    wrong = Step(
        4,
        3,
        "improve",
        plan="drop the bias",
        author="gpt-x",
        verdict=failed(4, Status.WRONG, "relative error 1"),
    )
    settle(store, wrong, 16, "0")
    broken = Step(
        5,
        3,
        "improve",
        plan="unroll",
        author="gpt-x",
        verdict=failed(5, Status.BUILD_FAILED, "kernel.cpp:18: error\nexpected ;"),
    )
    settle(store, broken, 64)
    again = Step(
        6,
        3,
        "improve",
        plan="sixteen sums once more",
        author="gpt-x",
        no_verdict=NoVerdict.DUPLICATE,
        note="the same source as step 3",
    )
    settle(store, again, 16)
    point = TuningPoint({"BLOCK": 32}, Status.PASSED, 0.8, "quick")
    tuning = Tuning({"BLOCK": 32}, "the fastest by more than the interval", (point,) * 3)
    best = Step(
        7, 3, "improve", plan="blocks", hypothesis="the cache", author="gpt-x", cost=Cost(0.02, 1000, 300, 1)
    )
    details = StepDetails(expected_speedup=2.0, tuning=tuning, device_seconds=8.0)
    settle(
        store,
        replace(
            best,
            verdict=passed(7, 0.8),
            details=details,
            diagnosis=diagnosis(replace(FINDING, diagnostic="dram")),
        ),
        32,
    )
    store.save_wall_seconds(321.0)
    store.add_device_seconds("probe", 12.5)
    store.add_device_seconds("candidates", 8.0)
    return store


def metered(home: Path) -> RunStore:
    """Not finished; the energy of three steps was asked for, and of two it was told."""
    store = searched(home)
    energies = {
        3: verdict(1.0, 0.7).energy,
        7: verdict(0.8, 0.9).energy,
        1: verdict(2.0, refused="no counter").energy,
    }
    for step in store.steps():
        if step.verdict and energies.get(step.number):
            store.save_step(replace(step, verdict=replace(step.verdict, energy=energies[step.number])))
    return store


def won(home: Path) -> RunStore:
    store = searched(home)
    store.save_outcome(
        Outcome(
            "the budget of 8 candidates is spent",
            7,
            passed(7, 0.82),
            (7, 3),
            ("step 3 did not hold up: wrong: once",),
        )
    )
    return store


def compiler_won(home: Path, author: str = "torch.compile") -> RunStore:
    store = begun(home)
    settle(
        store, Step(1, 0, "seed", plan="what the compiler generates", author=author, verdict=passed(1, 1.5))
    )
    store.save_outcome(Outcome("the author has no further idea", 1, passed(1, 1.5), (1,)))
    return store


def lost(home: Path) -> RunStore:
    """Nothing passed."""
    store = begun(home)
    for number, status in enumerate((Status.WRONG, Status.WRONG, Status.CHEATING, Status.TIMED_OUT), 1):
        step = Step(
            number,
            0,
            "seed",
            plan=f"idea {number}",
            author="gpt-x",
            verdict=failed(number, status, f"reason {number}"),
        )
        settle(store, step, number)
    store.save_step(Step(5, 0, "seed", "settled", no_verdict=NoVerdict.NO_IDEA, note="nothing is left"))
    store.add_event(StepProgress(5, "settled"))
    store.save_outcome(Outcome("the author has no further idea", notes=("no candidate passed",)))
    return store


def refused(home: Path) -> RunStore:
    """The task could not be scored: it ended before the first candidate."""
    store = begun(home, measured=False)
    store.add_event(RunFailed("this task cannot be scored: its output is constant"))
    return store


HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>{{ 7 * 7 }}{% raw %}\"'`|![x](http://x)"


def hostile(home: Path) -> RunStore:
    """Every text that an author can choose tries to become markup."""
    task = replace(TASK, name="affine", source=f"# {HOSTILE}\n" + TASK.source)
    store = begun(home, replace(CONFIG, task=task, author=f"files:{HOSTILE}", models={"code": HOSTILE}))
    finding = replace(FINDING, cause=HOSTILE, diagnostic=HOSTILE, advice=(HOSTILE,), where=HOSTILE)
    first = Step(
        1,
        0,
        "seed",
        plan=HOSTILE,
        hypothesis=HOSTILE,
        author=HOSTILE,
        note=HOSTILE,
        diagnosis=diagnosis(finding),
    )
    settle(
        store, replace(first, verdict=passed(1, 1.0, notes=(HOSTILE,), language=HOSTILE)), 1, remark=HOSTILE
    )
    tuning = Tuning({HOSTILE: HOSTILE}, HOSTILE, ())
    second = Step(2, 1, "improve", plan=HOSTILE, author=HOSTILE, verdict=failed(2, Status.WRONG, HOSTILE))
    settle(
        store,
        replace(second, details=StepDetails(tuning=tuning, diagnostic=HOSTILE)),
        2,
        remark=f"{HOSTILE} again",
    )
    store.save_outcome(Outcome(HOSTILE, 1, passed(1, 1.0), (1,), (HOSTILE,)))
    return store
