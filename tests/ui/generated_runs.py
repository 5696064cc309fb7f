"""Generated runs of any size: trees that a real policy chose, with steps, events and transcripts as the engine stores them."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

from report.made_runs import FACTS, FINDING, SOURCE, diagnosis, failed, passed

from kernelpro.engine.store import RunStore
from kernelpro.llm.transcripts import FILE
from kernelpro.records import (
    AccountPart,
    Cost,
    Limits,
    NoVerdict,
    Outcome,
    RunConfig,
    Status,
    Step,
    StepDetails,
    Task,
)
from kernelpro.records.events import RunEvent, RunStarted, StepChosen, StepProgress, TaskMeasured
from kernelpro.search.choice import SEED, Choice, expand
from kernelpro.search.policy import make_policy
from kernelpro.search.tree import Tree

PLANS = (
    "tile the rows so that one block fits the L1 cache",
    "keep the running sum in registers, write each output once",
    "vectorize the inner loop with independent accumulators",
    "fuse the bias and the activation into the epilogue",
    "prefetch the next tile while the current one is reduced",
    "split the reduction over two passes without atomics",
    "unroll by eight and align the loads",
)
ACCOUNT = (
    AccountPart("floor", 0.5, 0.48, 0.52),
    AccountPart("strided_access", 0.14, 0.1, 0.2, lines=("kernel.cpp:14",)),
    AccountPart("dependency_chains", 0.11, 0.1, 0.2, lines=("kernel.cpp:19",)),
    AccountPart("idle_cores", 0.06, 0.0, 0.1),
)
FAILURES = (
    (Status.WRONG, "relative error 0.31 on inputs as given; the limit is 1.2e-06"),
    (
        Status.BUILD_FAILED,
        "kernel.cpp:18:5: error: expected ';' before 'for'\n   18 |     for (long i = 0\n      |     ^~~",
    ),
    (Status.CRASHED, "the process was ended by signal 11 in the first call"),
    (Status.TIMED_OUT, "a call took more than 10 s"),
)


LARGE = 400
"""Beyond so many steps chance chooses, not the policy: choosing looks at all children of the root."""


def config(name: str = "residual_layernorm", **more: object) -> RunConfig:
    settings: dict[str, object] = {"models": {"code": "anthropic:claude-x", "plan": "openai:gpt-x"}}
    settings["limits"] = Limits(candidates=300, dollars=25.0)
    task = Task("import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n", name)
    return RunConfig(task, "cpu", "team", **(settings | more))  # type: ignore[arg-type]


def record(
    home: Path, count: int, seed: int = 1, ended: bool = False, open_steps: int = 2, **more: object
) -> RunStore:
    """A run of so many steps that a process worked on, and that ended or was interrupted."""
    store = RunStore.create(home, config(**more), "recorded")  # type: ignore[arg-type]
    start = time.time() - 9 * count - 60
    with store.transaction():
        _fill(store, count, random.Random(seed), start, 0 if ended else open_steps)
    if ended:
        best = min((step for step in store.steps() if step.ms), key=lambda step: step.ms or 9.0)
        store.save_outcome(
            Outcome("the budget of 300 candidates is spent", best.number, best.verdict, (best.number,))
        )
    return store


def _fill(store: RunStore, count: int, rng: random.Random, start: float, open_steps: int) -> None:
    _event(store, start, RunStarted())
    store.save_task_facts(FACTS)
    store._set("created", start)
    _event(store, start + 5, TaskMeasured(FACTS.baselines, FACTS.floor_ms))
    tree, policy = Tree(FACTS.baseline_ms, FACTS.floor_ms, 1, min(count, 300)), make_policy("mcts")
    keys = [
        store.save_source(SOURCE.format(block=2**k, added="1", remark=f"version {k}"))
        for k in range(min(count, 40))
    ]
    lines = []
    for number in range(1, count + 1):
        choice = SEED
        if number > 1:
            large = number > LARGE
            choice = _chance(tree, rng) if large else policy.choose(tree, random.Random(number))
        tree.add(choice.parent, choice.action, choice.donor)
        at = start + 9 * number
        _event(store, at, StepChosen(number, choice.parent, choice.action))
        step = Step(number, choice.parent, choice.action, donor=choice.donor or 0)
        if number > count - open_steps:
            _event(store, at, StepProgress(number, "writing"))
            store.save_step(step)
            continue
        step = _settled(step, tree, rng, keys[number % len(keys)])
        if step.number % 9 == 2 and step.ms:
            step = replace(step, diagnosis=replace(diagnosis(FINDING), account=ACCOUNT))
        tree.settle(number, step.ms, void=step.verdict is None)
        for phase, later in (("writing", 0.0), ("judging", 4.0), ("judged", 8.0), ("settled", 8.5)):
            _event(store, at + later, StepProgress(number, phase))  # type: ignore[arg-type]
        store.save_step(step)
        if number % 3 and number > 1:
            lines.append(_exchange(step))
    (store.folder / FILE).write_text("".join(lines))
    store.save_wall_seconds(9.0 * count)
    store.add_device_seconds("candidates", 4.2 * count)


def _chance(tree: Tree, rng: random.Random) -> Choice:
    """One of the last nodes, or now and then a fresh design."""
    recent = [node for node in tree.nodes[-300:] if node.state in ("ok", "failed") and len(node.children) < 4]
    return expand(rng.choice(recent)) if recent and rng.random() > 0.01 else SEED


def _settled(step: Step, tree: Tree, rng: random.Random, key: str) -> Step:
    parent = tree.nodes[step.parent]
    before = parent.ms or 2.6
    plan = PLANS[step.number % len(PLANS)]
    author = "torch.compile" if step.number == 1 else "claude-x"
    cost = Cost() if step.number == 1 else Cost(0.02 + rng.random() / 30, 5200, 1400, 2)
    step = replace(step, stage="settled", plan=plan, author=author, source=key, final_source=key, cost=cost)
    step = replace(step, hypothesis="fewer bytes move, so the time falls with them")
    details = StepDetails(
        f"f{step.number}", "cpu_scalar_code" if step.parent else "", 1.2 if step.parent else 0.0
    )
    step = replace(step, details=details)
    draw = rng.random()
    if step.number > 1 and draw < 0.06:
        return replace(step, no_verdict=NoVerdict.DUPLICATE, note="the same source as an earlier step")
    if step.number > 1 and draw < 0.28:
        status, reason = FAILURES[int(draw * 1000) % len(FAILURES)]
        return replace(step, verdict=failed(step.number, status, reason))
    factor = rng.uniform(0.84, 1.16) if step.parent else rng.uniform(0.6, 1.5)
    return replace(step, verdict=passed(step.number, max(0.55 + rng.random() / 9, before * factor)))


def _event(store: RunStore, at: float, event: RunEvent) -> None:
    store._db.execute(
        "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)", (at, event.kind, json.dumps(event.to_json()))
    )


def _exchange(step: Step) -> str:
    role = {"seed": "design", "debug": "debug"}.get(step.action, "plan")
    messages = [
        {"role": "system", "text": "You write kernels."},
        {"role": "user", "text": "# The task\nMake it faster."},
        {"role": "assistant", "text": f"transformation: {step.plan}\nexpected: 1.2x"},
    ]
    data = {
        "key": f"step-{step.number}/{role}",
        "content_hash": "c",
        "format_hash": "f",
        "role": role,
        "model": "claude-x",
        "status": "answered",
        "text": messages[-1]["text"],
        "dollars": str(step.cost.dollars),
        "cost": step.cost.to_json(),
        "notes": [],
        "messages": messages,
    }
    return json.dumps(data) + "\n"
