"""Measure what the engine adds to judging, and how its cost grows with the tree.

    python benchmarks/engine_overhead.py [--candidates 12] [--out FILE]

1. The same C++ candidates through the judge alone and through a run (a scripted author that answers at
   once), in alternation, both with a prepared worker. Prints the ratio of their times.
2. Trees of 100, 1,000 and 10,000 steps with real records. Prints the time to choose a node, to store a
   step, and to open the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kill_runs import TASK, write_candidates  # noqa: E402

from kernelpro.authors.files import FilesAuthor  # noqa: E402
from kernelpro.engine import task_facts  # noqa: E402
from kernelpro.engine.loop import Engine  # noqa: E402
from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.pools.local import LocalPool  # noqa: E402
from kernelpro.records import Candidate, Job, Limits, Options, Result, RunConfig, Step, Task, Verdict  # noqa: E402
from kernelpro.records.events import RunEvent, StepProgress  # noqa: E402
from kernelpro.search.policy import make_policy  # noqa: E402
from kernelpro.search.tree import Tree  # noqa: E402

OPTIONS = Options(effort="quick", baselines=("eager_fp32",))


def judge_folder(
    pool: LocalPool, task: Task, folder: Path, give_up_ratio: float
) -> tuple[float, list[Verdict]]:
    """Seconds to judge all different candidates, submitted at once and with the time limit of a run."""
    started = time.perf_counter()
    options = replace(OPTIONS, give_up_ratio=give_up_ratio)
    different = {path.read_text(): path for path in sorted(folder.glob("*.py"), reverse=True)}
    jobs = [
        Job(path.stem, "judge", task, Candidate.from_file(path), "cpu", options)
        for path in sorted(different.values())
    ]
    verdicts = [future.result().verdict for future in [pool.submit(job) for job in jobs]]
    return time.perf_counter() - started, [verdict for verdict in verdicts if verdict]


def search_folder(
    pool: LocalPool, task: Task, folder: Path, runs_dir: Path, count: int
) -> tuple[float, RunStore]:
    """Seconds of a run over the same candidates, without the stages that a run has once: probing and studying
    the task, the compiler's code, final judgements, and the profile of the winner."""
    limits = Limits(candidates=count, stop_at_floor=0.0)
    config = RunConfig(
        task, "cpu", f"files:{folder}", policy="best-of-n", limits=limits, options=OPTIONS, finalists=0
    )
    store = RunStore.create(runs_dir, replace(config, compile_seed=False), "run")
    clock: dict[str, float] = {}

    async def run_job(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    async def search() -> None:
        await task_facts.measure_task(store, store.config(), run_job)
        clock["started"] = time.perf_counter()

        def on_event(event: RunEvent) -> None:
            if isinstance(event, StepProgress) and event.phase == "settled":
                clock["settled"] = time.perf_counter()

        await Engine(store, pool, FilesAuthor(folder), on_event).run()

    asyncio.run(search())
    return clock["settled"] - clock["started"], store


def measure_growth(template: Step, size: int, runs_dir: Path) -> dict[str, float]:
    """Costs of one step in a tree of this size, over its last 100 steps."""
    store = RunStore.create(runs_dir, RunConfig(Task(TASK, "t"), "cpu", "files:x"), f"size{size}")
    tree, policy, rng = Tree(1.0, 0.1), make_policy("mcts"), random.Random(0)
    choose_seconds = store_seconds = 0.0
    outcomes: list[float | None] = [None]
    for number in range(1, size + 1):
        started = time.perf_counter()
        choice = policy.choose(tree, rng)
        chosen = time.perf_counter()
        tree.add(choice.parent, choice.action, choice.donor)
        outcomes.append(None if rng.random() < 0.4 else 1.0 - 0.7 * rng.random())
        tree.settle(number, outcomes[-1])
        step = replace(
            template,
            number=number,
            parent=choice.parent,
            action=choice.action,
            donor=choice.donor or 0,
            stage="settled",
        )
        if number > size - 100:
            stored = time.perf_counter()
            store.save_step(step)
            store_seconds += time.perf_counter() - stored
            choose_seconds += chosen - started
        else:
            store._db.execute(
                "INSERT INTO step VALUES (?, ?, ?)", (number, step.stage, json.dumps(step.to_json()))
            )
    store.close()
    started = time.perf_counter()
    reopened = RunStore.open(runs_dir, store.id)
    steps = reopened.steps()
    rebuilt = Tree(1.0, 0.1)
    for step in steps:
        rebuilt.add(step.parent, step.action, step.donor or None)
        rebuilt.settle(step.number, outcomes[step.number])
    return {
        "size": size,
        "choose_ms": 10 * choose_seconds,
        "store_ms": 10 * store_seconds,
        "open_s": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=12, help="candidates to judge")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures here, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engine-overhead-") as name, LocalPool() as pool:
        folder = Path(name) / "candidates"
        write_candidates(folder, arguments.candidates)
        task = Task(TASK, "relu")
        judge_folder(pool, task, folder, 0.0)  # builds the candidates and prepares the task
        pairs = []
        for turn in range(3):
            alone, _ = judge_folder(pool, task, folder, 3.0)
            whole, store = search_folder(pool, task, folder, Path(name) / f"runs{turn}", arguments.candidates)
            pairs.append((alone, whole))
            print(f"judge {alone:6.2f} s, run {whole:6.2f} s, ratio {whole / alone:.3f}", flush=True)
        template = max(store.steps(), key=lambda step: len(step.dumps()))
        sizes = [measure_growth(template, size, Path(name) / "growth") for size in (100, 1000, 10_000)]
    ratios = sorted(whole / alone for alone, whole in pairs)
    for row in sizes:
        costs = (
            f"choose {row['choose_ms']:.3f} ms, store {row['store_ms']:.3f} ms, open {row['open_s']:.2f} s"
        )
        print(f"{row['size']:6} steps: {costs}")
    print(f"median ratio {ratios[1]:.3f}")
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"pairs_s": pairs, "ratios": ratios, "growth": sizes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
