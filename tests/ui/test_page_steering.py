"""Each action of the page lands in the store and changes what the engine does next; a killed run is resumed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from engine.steered_run import Lab, config, kernel
from report.browser import PROGRAM
from ui.page_server import Page, PageServer, own_locks, serving, wait_until

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.authors.by_name import create_author
from kernelpro.engine.loop import Engine, Stopped
from kernelpro.engine.store import RunStore
from kernelpro.records import Limits, Options, RunConfig, Task, TaskFacts
from kernelpro.records.events import (
    AnswerGiven,
    BranchClosed,
    BudgetAdded,
    HintGiven,
    KernelPasted,
    NodePinned,
    ProfileRequested,
    ResumeRequested,
    RunEvent,
    RunStopped,
    StopRequested,
)

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("steered")
    (home / "runs").mkdir()
    with serving(home) as found:
        yield found


class Patient(Author):
    """Writes a step only when the test allows it."""

    name = "script"

    def __init__(self) -> None:
        self.allowed = 0
        self.asked: dict[int, Assignment] = {}

    async def write(self, assignment: Assignment) -> Draft:
        self.asked[assignment.step] = assignment
        while len(self.asked) > self.allowed:
            await asyncio.sleep(0.02)
        ms = 0.95 if assignment.step % 3 == 2 else 0.9 - 0.04 * len(self.asked)
        return Draft(kernel(ms), plan=f"version {assignment.step}")

    def write_one(self, pasted: int = 0) -> Assignment:
        """Allow one step, and return the assignment of the next. `pasted`: steps of the user in between."""
        before = max(self.asked)
        self.allowed += 1
        wait_until(lambda: max(self.asked) == before + 1 + pasted, "the next step is asked for")
        return self.asked[before + 1 + pasted]


@contextmanager
def working(store: RunStore, author: Author) -> Iterator[list[BaseException]]:
    """The engine at work in a thread of its own, until the block ends; collects how it ended."""
    ended: list[BaseException] = []

    def work() -> None:
        own = RunStore(store.folder)
        own.lock()
        try:
            asyncio.run(Engine(own, Lab(), author).run())  # type: ignore[arg-type]
        except BaseException as error:
            ended.append(error)
        finally:
            own.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ended
    finally:
        if thread.is_alive():
            store.add_event(StopRequested())
        thread.join(30)
        assert not thread.is_alive()


def kinds(store: RunStore) -> list[type[RunEvent]]:
    return [type(event) for _, event in store.events()]


def stored(store: RunStore, kind: type[RunEvent], **fields: object) -> RunEvent:
    """The last event of this type, once it has these fields."""

    def matching() -> list[RunEvent]:
        found = [event for _, event in store.events() if type(event) is kind][-1:]
        return [event for event in found if all(getattr(event, name) == fields[name] for name in fields)]

    found: list[RunEvent] = wait_until(matching, f"{kind.__name__} {fields} in the store")
    return found[-1]


def unexpected(page: Page) -> list[str]:
    """What the browser complained of, refused requests aside."""
    return [line for line in page.browser.complaints if "400 (Bad Request)" not in line]


def test_every_action_changes_what_the_engine_does_next(page: Page, server: PageServer) -> None:
    store = RunStore.create(server.runs, config("greedy", 30), "steered")
    author = Patient()
    with working(store, author) as ended:
        wait_until(lambda: author.asked, "the first step")
        page.visit(f"/runs/runs/{store.id}")
        page.until_text("#state", "running")
        assert "step 1" in page.text("#activity")

        page.click('[data-do="hint"]')
        page.fill("#dialog-hint textarea", "keep the row in registers")
        page.click("#dialog-hint [data-send]")
        stored(store, HintGiven, text="keep the row in registers")
        assert author.write_one().hints == ("keep the row in registers",)
        page.until_text("#steering", "keep the row in registers")
        for _ in range(3):
            author.write_one()

        page.browser.value("location.hash = 'step-1'")
        page.click('#step-actions [data-act="pin"]')
        stored(store, NodePinned, step=1)
        pinned = author.write_one()
        assert pinned.parent and pinned.parent.number == 1, "the next step starts here"
        page.until_text("#steering", "Pinned: step 1")
        page.click("#steering button")  # releases it
        stored(store, NodePinned, step=0)
        page.browser.value("location.hash = 'step-4'")
        page.until("document.querySelector('#drawer-title').textContent === 'Step 4'")
        page.click('#step-actions [data-act="close"]')
        stored(store, BranchClosed, step=4)
        for _ in range(3):
            chosen = author.write_one()
            assert chosen.parent is None or chosen.parent.number != 4, "though it may be the fastest"
        page.browser.value("location.hash = 'step-2'")  # slow: nobody improved it, so nobody profiled it
        page.until("document.querySelector('#drawer-title').textContent === 'Step 2'")
        page.click('#step-actions [data-act="profile"]')
        stored(store, ProfileRequested, step=2)
        author.write_one()
        wait_until(
            lambda: (s := store.step(2)) and s.details.profile_error, "this lab has no profiler, and says so"
        )

        page.click('[data-do="paste"]')
        page.fill("#dialog-paste textarea", "class ModelNew:\n    pass\n:")
        page.click("#dialog-paste [data-send]")
        page.until_text("#dialog-paste .fault", "not Python: line 3")
        page.fill("#dialog-paste textarea", kernel(0.05))
        page.fill('#dialog-paste [name="parent"]', "2")
        page.click("#dialog-paste [data-send]")
        pasted = stored(store, KernelPasted)
        assert isinstance(pasted, KernelPasted) and pasted.parent == 2
        author.write_one(pasted=1)
        mine = next(step for step in store.steps() if step.pasted)
        assert (mine.parent, mine.author, store.source(mine.source)) == (2, "user", kernel(0.05))
        page.until_text("#tiles", "20.00\u00d7")

        page.click('[data-do="budget"]')
        page.fill('#dialog-budget [name="candidates"]', "7")
        page.click("#dialog-budget [data-send]")
        stored(store, BudgetAdded, candidates=7)
        author.write_one()
        assert store.config().limits.candidates == 37
        page.until_text("#tiles", "of 37")

        page.click('[data-do="stop"]')
        page.click("#dialog-confirm [data-send]")
        page.until_text("#banner", "The run was stopped: stopped at the user's request")
        assert stored(store, StopRequested, finish=False) and stored(store, RunStopped)
    assert isinstance(ended[0], Stopped)
    assert unexpected(page) == []


def test_a_question_is_answered_in_the_page(page: Page, server: PageServer, tmp_path: Path) -> None:
    settings = replace(config("greedy", 2), author="team", models={"code": f"inbox:{tmp_path}"}, wait=True)
    store = RunStore.create(server.runs, settings, "asked")
    with working(store, create_author(settings, store.folder)):
        page.visit(f"/runs/runs/{store.id}")
        page.click("#questions button")
        page.until("document.querySelector('#dialog-answer').open")
        assert "step-1/design" in page.text("#dialog-answer-title") and "ModelNew" in page.text(
            "#answer-question"
        )
        page.fill("#dialog-answer textarea", "plan: something\n\n```python\nclass Wrong: pass\n```")
        page.click("#answer-check")
        page.until_text("#dialog-answer .fault", "hypothesis")
        page.click("#dialog-answer [data-send]")
        page.until_text("#dialog-answer .fault", "hypothesis")
        assert AnswerGiven not in kinds(store), "a malformed answer is not accepted"
        answer = f"plan: one pass\nhypothesis: memory\n\n```python\n{kernel(0.4)}```\n"
        page.fill("#dialog-answer textarea", answer)
        page.click("#answer-check")
        page.until_text("#dialog-answer .fault", "The format is valid")
        page.click("#dialog-answer [data-send]")
        given = stored(store, AnswerGiven)
        assert isinstance(given, AnswerGiven) and store.source(given.text) == answer
        first = wait_until(lambda: (s := store.step(1)) and s.ms and s, "the run goes on with the answer")
        assert first.plan == "one pass" and first.ms == 0.4
        page.until_text("#questions", "step-2/")
    assert unexpected(page) == []


TASK = Task(
    "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x) * 2 + 1\n\n\n"
    "def get_inputs():\n    return [torch.randn(64, 1024)]\n\n\ndef get_init_inputs():\n    return []\n",
    "relu",
)
CPP = '''
import torch
from kernelpro import runtime

lib = runtime.cpp(r"""
extern "C" void go(const float* x, float* y, long n) {{
    for (int again = 0; again < {times}; ++again) {{
        asm volatile("" ::: "memory");
        for (long i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * 2 + 1;
    }}
}}
""")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
'''


def test_a_run_is_watched_while_it_is_killed_and_resumed(
    page: Page, server: PageServer, tmp_path: Path
) -> None:
    """Real processes and the real judge: killed with SIGKILL, resumed from the page, which goes on by itself."""
    for number in (1, 2):
        (tmp_path / f"{number}.py").write_text(CPP.format(times=10 * number))
    settings = RunConfig(
        TASK,
        "cpu",
        f"files:{tmp_path}",
        policy="best-of-n",
        limits=Limits(2, stop_at_floor=0.0),
        options=Options(effort="quick", baselines=("eager_fp32",)),
        concurrency=1,
        finalists=0,
        compile_seed=False,
        tune_points=0,
        knowledge=False,
    )
    store = RunStore.create(server.runs, settings, "killed")
    store.save_task_facts(TaskFacts({"eager_fp32": 0.05}, 0.01, "fp32"))
    page.visit(f"/runs/runs/{store.id}")
    command = [sys.executable, "-m", "kernelpro", "resume", store.id, "--runs-dir", str(server.runs)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=own_locks(server.home),
    )
    try:
        page.until_text("#state", "running")
        page.until("document.querySelector('#activity .stage') !== null")
        wait_until(lambda: (s := store.step(1)) and s.stage == "drafted", "a step at the judge")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    page.until_text("#banner", "The process that worked on this run died")
    page.until_text("#state", "process died")
    page.click("#banner button")
    page.until_text("#state", "running")
    page.until_text("#state", "finished")
    assert page.browser.value("window.kernelpro.state.steps.size") >= 2, "without a reload"
    time.sleep(0.1)
    assert kinds(store).count(ResumeRequested) >= 2 and len([s for s in store.steps() if s.ms]) == 2
    assert unexpected(page) == []
