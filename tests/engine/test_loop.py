"""Whole runs with the real judge on the CPU: duplicates, tuning, pauses, resumption, and the winner."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelpro.authors.author import AnswerPending, Assignment, Author, Draft, NoMoreProposals, NoProposal
from kernelpro.authors.files import FilesAuthor
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.final_judging import FinalJudging
from kernelpro.engine.loop import Engine, Paused
from kernelpro.engine.store import RunStore
from kernelpro.pools.local import LocalPool
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import (
    BaselineSeed,
    ComparableTimes,
    Interval,
    Limits,
    NoVerdict,
    Options,
    Outcome,
    RunConfig,
    Status,
    Step,
    Task,
    TaskFacts,
    Verdict,
)
from kernelpro.records.events import StepProgress

ROOT = Path(__file__).parents[2]
FACTS = TaskFacts({"eager_fp32": 0.05}, 0.01, "fp32")
"""Of TASK: so that not every run measures it again."""
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
WAITING_TASK = Task(
    TASK.source.replace("return torch", "time.sleep(0.01)\n        return torch").replace(
        "import torch", "import time\nimport torch", 1
    ),
    "waiting",
)
"""A baseline so slow that a thread that wakes late changes no ratio by much."""
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


def waiting_kernel(times: int) -> str:
    """A kernel that waits a millisecond for each time but the first, and can be tuned: its speed does not depend on others."""
    text = kernel(times, tuned=True).replace('extern "C"', '#include <unistd.h>\nextern "C"')
    return text.replace('asm volatile("" ::: "memory");', "if (again) usleep(1000);")


class Script(Author):
    """An author with a fixed list of candidates, each written after a random delay."""

    name = "script"

    def __init__(self, *sources: str):
        self._sources = sources
        self.asked: list[Assignment] = []

    async def write(self, assignment: Assignment) -> Draft:
        self.asked.append(assignment)
        await asyncio.sleep(random.random() / 50)
        if assignment.turn >= len(self._sources):
            raise NoMoreProposals("the script is at its end")
        return Draft(self._sources[assignment.turn], plan=f"version {assignment.step}", author="script")


@pytest.fixture
def pool(local_pool: LocalPool) -> LocalPool:
    return local_pool


def config(policy: str = "best-of-n", candidates: int = 10, **more: object) -> RunConfig:
    """A configuration that is quick to judge, without final judging."""
    settings: dict[str, object] = {"finalists": 0, "compile_seed": False, "tune_points": 0}
    settings["options"] = Options(effort="quick", baselines=("eager_fp32",))
    settings["limits"] = Limits(candidates, stop_at_floor=0.0)
    return RunConfig(
        **({"task": TASK, "target": "cpu", "author": "script", "policy": policy} | settings | more)
    )  # type: ignore[arg-type]


def run(store: RunStore, pool: LocalPool, author: Author) -> tuple[Outcome, Engine]:
    engine = Engine(store, pool, author)
    return asyncio.run(engine.run()), engine


def phase(store: RunStore, name: str) -> list[int]:
    """The steps that entered a phase, in order."""
    return [
        event.step for _, event in store.events() if isinstance(event, StepProgress) and event.phase == name
    ]


def test_the_last_improvements_wait_for_designs_that_are_still_open(tmp_path: Path, pool: LocalPool) -> None:
    """Of two designs the second is the better one, and it is still judged when the first has settled."""
    store = RunStore.create(tmp_path, config("mcts", candidates=3, concurrency=2), "demo")
    store.save_task_facts(FACTS)
    run(store, pool, Script(kernel(40), kernel(1), kernel(2)))
    steps = {step.number: step for step in store.steps()}
    assert [steps[number].action for number in (1, 2, 3)] == ["seed", "seed", "improve"]
    assert steps[3].parent == 2


def test_a_run_tries_recognises_and_names_a_winner(tmp_path: Path, pool: LocalPool) -> None:
    store = RunStore.create(tmp_path, config(finalists=1), "demo")
    again = kernel(10, added="1 /* said differently */")
    author = Script(kernel(40), kernel(1, added="2"), kernel(10), "# the same\n" + kernel(10), "def (", again)
    outcome, _ = run(store, pool, author)
    steps = store.steps()
    states = [step.state for step in steps[:6]]
    assert states == ["passed", "wrong", "passed", "duplicate", "build_failed", "duplicate"]
    assert steps[3].note == "the same source as step 3"
    assert steps[5].note == "step 3 compiles to the same instructions"
    assert outcome.best == 3 and outcome.verdict and outcome.verdict.status is Status.PASSED
    assert steps[2].diagnosis, "the winner is profiled: what would be next is part of the answer"
    assert "no further idea" in outcome.reason and all(step.stage == "settled" for step in steps)
    assert phase(store, "final_judging") == [3] and outcome.verdict != steps[2].verdict
    assert phase(store, "settled") == [step.number for step in steps], (
        "results are settled in the order of choosing"
    )
    held = store.device_seconds
    assert (
        set(held) == {"probe", "study", "candidates", "profile", "final judging"} and min(held.values()) > 0
    )


def test_tunables_are_searched_and_written_back(tmp_path: Path, pool: LocalPool) -> None:
    store = RunStore.create(tmp_path, config(candidates=1, tune_points=4, task=WAITING_TASK), "demo")
    store.save_task_facts(FACTS)
    run(store, pool, Script(waiting_kernel(60)))
    (step,) = store.steps()
    assert step.source != step.final_source, (step.note, step.details.tuning)
    assert "tune:" not in store.source(step.final_source)
    assert step.details.tuning and step.details.tuning.point == {"TIMES": 1}
    assert "TIMES = 1" in store.source(step.final_source)


def test_a_candidate_far_behind_the_best_is_not_tuned(tmp_path: Path, pool: LocalPool) -> None:
    store = RunStore.create(tmp_path, config(candidates=2, tune_points=4, concurrency=1), "demo")
    store.save_task_facts(FACTS)
    run(store, pool, Script(kernel(1), waiting_kernel(60)))
    first, second = store.steps()
    assert first.ms and second.ms and second.ms > 1.5 * first.ms
    assert second.details.tuning is None and "are tuned" in second.note


def test_an_improvement_is_asked_for_with_the_diagnosis_of_its_parent(
    tmp_path: Path, pool: LocalPool
) -> None:
    store = RunStore.create(tmp_path, config("greedy", candidates=2, concurrency=1), "demo")
    author = Script(kernel(30), kernel(5))
    run(store, pool, author)
    seed, improve = author.asked
    assert seed.action == "seed" and seed.parent is None and seed.baselines and seed.hardware.name
    assert improve.action == "improve" and improve.parent and improve.parent.number == 1
    assert "The task is " in improve.guidance and "Time of a call" in improve.evidence
    assert store.steps()[0].diagnosis is not None


NORM = Task(
    """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.layer_norm(x, (1024,))

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
""",
    "norm",
)


@pytest.mark.long  # test_playbook_run.py has moves, tests/docs a real run of the playbook
def test_moves_of_the_playbook_follow_from_findings(tmp_path: Path, pool: LocalPool) -> None:
    asked = config("greedy", candidates=3, concurrency=1, task=NORM, author="playbook", knowledge=False)
    store = RunStore.create(tmp_path, asked, "demo")
    outcome, engine = run(store, pool, Playbook())
    best = engine.steps[outcome.best or 0]
    assert (
        best.verdict and best.verdict.status is Status.PASSED and all(step.source for step in store.steps())
    )
    first, second, _ = store.steps()
    assert first.diagnosis and first.diagnosis.findings, "plain loops: something is said of them"
    assert (
        second.details.diagnostic in {finding.diagnostic for finding in first.diagnosis.findings}
        and second.details.expected_speedup > 1
    )


def test_a_run_that_waits_for_answers_goes_on_where_it_was(tmp_path: Path, pool: LocalPool) -> None:
    store = RunStore.create(tmp_path, config(candidates=2), "demo")
    store.save_task_facts(FACTS)
    with pytest.raises(Paused, match=r"^1 answer outstanding$"):
        asyncio.run(Engine(store, pool, _Reluctant(kernel(60), kernel(1))).run())
    assert [step.stage for step in store.steps()] in (["settled", "chosen"], ["judged", "chosen"])
    outcome, _ = run(RunStore.open(tmp_path, store.id), pool, Script(kernel(60), kernel(1)))
    assert outcome.best == 2 and [step.stage for step in store.steps()] == ["settled", "settled"]


def test_a_later_answer_is_judged_while_an_earlier_one_is_waited_for(tmp_path: Path, pool: LocalPool) -> None:
    store = RunStore.create(tmp_path, config(candidates=2, tune_points=0), "demo")
    store.save_task_facts(FACTS)
    with pytest.raises(Paused, match=r"^1 answer outstanding$"):
        asyncio.run(Engine(store, pool, _Reluctant(kernel(9), kernel(9), late=1)).run())
    assert [step.stage for step in store.steps()] == ["chosen", "judged"]
    run(RunStore.open(tmp_path, store.id), pool, Script(kernel(9), kernel(9)))
    first, second = store.steps()
    assert first.ms and second.no_verdict is NoVerdict.DUPLICATE, "as if the first had been there in time"


def test_where_an_author_has_no_idea_another_node_is_tried(tmp_path: Path, pool: LocalPool) -> None:
    """Like the playbook: it has no move for what others wrote, and few designs of its own."""
    store = RunStore.create(tmp_path, config("greedy", candidates=6, concurrency=1), "demo")
    seed = BaselineSeed("compile", "torch.compile", kernel(3))
    store.save_task_facts(replace(FACTS, seeds=(seed,)))
    outcome, _ = run(store, pool, _Choosy(kernel(60), kernel(15)))
    assert [(s.action, s.parent, bool(s.source)) for s in store.steps()] == [
        ("seed", 0, True),
        ("improve", 1, False),
        ("seed", 0, True),
        ("improve", 3, True),
        ("improve", 4, False),
        ("improve", 3, False),
        ("seed", 0, False),
    ]
    assert outcome.best == 1 and "no further idea" in outcome.reason


class _Choosy(Script):
    """One design and one improvement of it, and nothing for what it did not write."""

    async def write(self, assignment: Assignment) -> Draft:
        wrote = not assignment.parent or assignment.parent.plan.startswith("version")
        if not wrote or len(self.asked) == len(self._sources):
            raise NoProposal("not mine, or no move is left")
        self.asked.append(assignment)
        return Draft(self._sources[len(self.asked) - 1], plan=f"version {assignment.step}", author="script")


class _Reluctant(Script):
    def __init__(self, *sources: str, late: int = 2):
        super().__init__(*sources)
        self._late = late

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.step == self._late:
            raise AnswerPending("not yet")
        return await super().write(assignment)


@pytest.mark.long  # suites/test_bench.py has a spool under a bench, cli/test_running.py a run that stops and goes on
def test_a_run_whose_pool_is_a_spool_asks_for_all_it_can_stops_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    settings = replace(config(candidates=2, tune_points=2), finalists=2)
    store = RunStore.create(tmp_path / "runs", settings, "demo")
    sources = kernel(40, tuned=True), kernel(9)
    pauses, outcome = [], None
    worker = None
    try:
        while outcome is None:
            try:
                with SpoolPool(folder, wait=False) as spool:
                    outcome, _ = run(RunStore.open(tmp_path / "runs", store.id), spool, Script(*sources))
            except Paused as paused:
                pauses.append(str(paused))
                assert len(pauses) < 9, "the worker's results are rejected"
            if worker is None:
                command = [sys.executable, "-m", "kernelpro", "worker", str(folder)]
                worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 600
            while SpoolFolder(folder).open_jobs() and worker.poll() is None:
                assert time.monotonic() < deadline, "the worker's results are rejected"
                time.sleep(0.1)
    finally:
        if worker:
            worker.terminate()
    said = worker.communicate()[1]
    assert pauses[0] == "2 results outstanding", "the probe and the study"
    assert pauses[1] == "2 results outstanding", "both candidates"
    assert pauses[-1] in ("1 result outstanding", "2 results outstanding"), (
        "in the end who of them may be the fastest"
    )
    assert outcome.best == 1 and (tuning := store.steps()[0].details.tuning) and tuning.point == {"TIMES": 1}
    jobs = {path.name for path in (folder / "jobs").iterdir()}
    assert jobs == {path.name for path in (folder / "results").iterdir()}
    assert said.count(" takes ") == len(jobs), "nothing was done twice"


def test_answers_and_results_may_be_outstanding_together(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, config(candidates=2, tune_points=0), "demo")
    store.save_task_facts(FACTS)
    for _ in range(2):
        with (
            SpoolPool(tmp_path / "spool", wait=False) as spool,
            pytest.raises(Paused, match=r"^1 answer and 1 result outstanding$"),
        ):
            asyncio.run(Engine(store, spool, _Reluctant(kernel(9), kernel(3))).run())
    assert len(SpoolFolder(tmp_path / "spool").open_jobs()) == 1, "asked again, it is the same job"


def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path, pool: LocalPool) -> None:
    """One real kill in the middle of a judgement; fifty at random moments: benchmarks/kill_runs.py."""
    folder = tmp_path / "candidates"
    folder.mkdir()
    # Parents depend on the order by time: candidates lie a factor of ten apart, all below the baseline.
    for name, text in {"1": kernel(30), "2": kernel(1, added="2"), "3": kernel(3), "4": kernel(300)}.items():
        (folder / f"{name}.py").write_text(text)
    wanted = config("epsilon-greedy", candidates=4, author=f"files:{folder}", task=WAITING_TASK)
    plain, killed = (RunStore.create(tmp_path / name, wanted, "run") for name in ("plain", "killed"))
    for store in (plain, killed):
        store.save_task_facts(replace(FACTS, baselines={"eager_fp32": 10.0}))
    run(plain, pool, FilesAuthor(folder))
    command = [
        sys.executable,
        "-m",
        "kernelpro",
        "resume",
        killed.id,
        "--runs-dir",
        str(killed.folder.parent),
        "--json",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "job" and event["stage"] == "timing":
                break
        process.kill()
    assert any(step.stage not in ("judged", "settled") for step in killed.steps()), "it was killed at work"
    run(killed, pool, FilesAuthor(folder))
    assert tree(killed.steps()) == tree(plain.steps())
    assert [step.author for step in plain.steps()] == ["1.py", "2.py", "3.py", "4.py"]
    assert any(step.parent for step in plain.steps())


def tree(steps: list[Step]) -> list[object]:
    return [(s.number, s.parent, s.action, s.source, s.state, s.note, s.stage) for s in steps]


def test_where_an_author_has_no_idea_the_compilers_own_code_wins_and_it_is_said(
    tmp_path: Path, pool: LocalPool
) -> None:
    store, author = RunStore.create(tmp_path, config(compile_seed=True), "demo"), Script()
    outcome, _ = run(store, pool, author)
    first, second = store.steps()[:2]
    assert (
        first.author == "torch.compile"
        and first.ms
        and "torch.compile" in store.source(first.source).splitlines()[0]
    )
    assert second.author == "PyTorch" and second.ms, "the fastest baseline is a candidate as well"
    assert outcome.best in (1, 2) and any("own code" in note for note in outcome.notes)
    assert "the script is at its end" in outcome.reason
    graph = author.asked[0].graph
    assert graph and [node.op for node in graph.nodes[:2]] == ["input", "aten.relu.default"]
    assert [(a.turn, a.attempt) for a in author.asked[:2]] == [(0, 0), (1, 1)], (
        "the author does not see the seeds"
    )


class Judged:
    """Returns fixed verdicts, and records the steps that it judged."""

    def __init__(self, **verdicts: Verdict):
        self._verdicts, self.asked = verdicts, []

    async def __call__(self, step: Step) -> Verdict:
        self.asked.append(step.number)
        return self._verdicts[f"step_{step.number}"]


def passed(ms: float, faster: str) -> Verdict:
    one = Interval(ms, ms, ms)
    return Verdict(
        "c",
        Status.PASSED,
        f"correct; {faster}",
        times={"candidate": one},
        speedup={"eager_fp32": one},
        faster=faster,
    )  # type: ignore[arg-type]


def test_a_leader_that_loses_in_the_final_judging_is_named() -> None:
    judge = Judged(step_5=passed(2.0, "yes"), step_6=passed(1.0, "yes"))
    leaders = [Step(5, 0, "seed", verdict=passed(0.5, "yes")), Step(6, 0, "seed", verdict=passed(1.0, "yes"))]
    final = FinalJudging("done", judge, config(), ComparableTimes())
    outcome = asyncio.run(final.decide(leaders, []))
    assert outcome.best == 6 and outcome.notes[0].startswith("step 5 led step 6 in the search, where it was ")
    reversed_order = asyncio.run(final.decide(leaders[::-1], []))
    assert reversed_order.best == 6 and not reversed_order.notes


@pytest.mark.parametrize(
    ("leader", "asked", "best"),
    [
        (passed(1.0, "yes"), [5], 5),
        (passed(3.0, "no"), [5, 1], 1),
        (Verdict("c", Status.WRONG, "off"), [5, 1], 1),
    ],
)
def test_a_leader_that_beats_no_baseline_has_to_beat_the_compiler(
    leader: Verdict, asked: list[int], best: int
) -> None:
    judge = Judged(step_5=leader, step_1=passed(2.0, "unclear"))
    given = Step(1, 0, "seed", author="torch.compile")
    outcome = asyncio.run(
        FinalJudging("done", judge, config(), ComparableTimes()).decide([Step(5, 0, "seed")], [given])
    )
    assert judge.asked == asked and outcome.best == best
    assert any("torch.compile's own code" in note for note in outcome.notes) == (best == 1)
