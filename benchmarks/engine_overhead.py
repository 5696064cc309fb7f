"""What the engine adds to judging, and how its cost grows with the tree.

    python benchmarks/engine_overhead.py [--candidates 12] [--out FILE]

1. The same C++ candidates through the judge alone and through a whole run (a scripted author that answers at once), both
   with a warm worker, alternating: the ratio of their times.
2. Trees of 100, 1,000 and 10,000 steps with real records: seconds to choose a node, to keep a step, to open the run again.
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


def judged(pool: LocalPool, task: Task, folder: Path, give_up_ms: float) -> tuple[float, list[Verdict]]:
    """Seconds for all different candidates of the folder, sent at once, hopeless ones given up as a run does it."""
    begun = time.perf_counter()
    options = replace(OPTIONS, give_up_ms=give_up_ms)
    different = {path.read_text(): path for path in sorted(folder.glob("*.py"), reverse=True)}
    jobs = [
        Job(path.stem, "judge", task, Candidate.from_file(path), "cpu", options)
        for path in sorted(different.values())
    ]
    verdicts = [answer.result().verdict for answer in [pool.submit(job) for job in jobs]]
    return time.perf_counter() - begun, [v for v in verdicts if v]


def searched(pool: LocalPool, task: Task, folder: Path, home: Path, count: int) -> tuple[float, RunStore]:
    """Seconds for a run over the same candidates. What comes once is left out: probing and studying the task, the compiler's own
    code, final judgements, and the profile of the winner."""
    limits = Limits(candidates=count, stop_at_floor=0.0)
    config = RunConfig(
        task, "cpu", f"files:{folder}", policy="best-of-n", limits=limits, options=OPTIONS, finalists=0
    )
    store = RunStore.create(home, replace(config, compile_seed=False), "run")
    at: dict[str, float] = {}

    async def ask(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    async def search() -> None:
        await task_facts.measure_task(store, store.config(), ask)
        at["begun"] = time.perf_counter()

        def settled(event: RunEvent) -> None:
            if isinstance(event, StepProgress) and event.phase == "settled":
                at["settled"] = time.perf_counter()

        await Engine(store, pool, FilesAuthor(folder), settled).run()

    asyncio.run(search())
    return at["settled"] - at["begun"], store


def growth(template: Step, size: int, home: Path) -> dict[str, float]:
    """Costs at a tree of this size."""
    store = RunStore.create(home, RunConfig(Task(TASK, "t"), "cpu", "files:x"), f"size{size}")
    tree, policy, dice = Tree(1.0, 0.1), make_policy("mcts"), random.Random(0)
    chosen = kept = 0.0
    outcomes: list[float | None] = [None]
    for number in range(1, size + 1):
        begun = time.perf_counter()
        choice = policy.choose(tree, dice)
        middle = time.perf_counter()
        tree.add(choice.parent, choice.action, choice.donor)
        outcomes.append(None if dice.random() < 0.4 else 1.0 - 0.7 * dice.random())
        tree.settle(number, outcomes[-1])
        step = replace(
            template,
            number=number,
            parent=choice.parent,
            action=choice.action,
            second=choice.donor or 0,
            stage="settled",
        )
        if number > size - 100:
            begun_keep = time.perf_counter()
            store.save_step(step)
            kept += time.perf_counter() - begun_keep
            chosen += middle - begun
        else:
            store._db.execute(
                "INSERT INTO step VALUES (?, ?, ?)", (number, step.stage, json.dumps(step.to_json()))
            )
    store.close()
    begun = time.perf_counter()
    again = RunStore.open(home, store.id)
    steps = again.steps()
    rebuilt = Tree(1.0, 0.1)
    for step in steps:
        rebuilt.add(step.parent, step.action, step.donor or None)
        rebuilt.settle(step.number, outcomes[step.number])
    return {
        "size": size,
        "choose_ms": 10 * chosen,
        "keep_ms": 10 * kept,
        "open_s": time.perf_counter() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engine-overhead-") as name, LocalPool() as pool:
        folder = Path(name) / "candidates"
        write_candidates(folder, chosen.candidates)
        task = Task(TASK, "relu")
        _, first = judged(pool, task, folder, 0.0)  # builds, warms
        limit = 3 * next(v.times["eager_fp32"].value for v in first if v.times)
        pairs = []
        for turn in range(3):
            alone, _ = judged(pool, task, folder, limit)
            whole, store = searched(pool, task, folder, Path(name) / f"runs{turn}", chosen.candidates)
            pairs.append((alone, whole))
            print(
                f"judging alone {alone:6.2f} s, a run {whole:6.2f} s, ratio {whole / alone:.3f}", flush=True
            )
        template = max(store.steps(), key=lambda s: len(s.dumps()))
        sizes = [growth(template, size, Path(name) / "growth") for size in (100, 1000, 10_000)]
    ratios = sorted(whole / alone for alone, whole in pairs)
    for row in sizes:
        print(
            f"{row['size']:6} steps: choose {row['choose_ms']:.3f} ms, keep {row['keep_ms']:.3f} ms, open {row['open_s']:.2f} s"
        )
    print(f"median ratio {ratios[1]:.3f}")
    if chosen.out:
        chosen.out.write_text(
            json.dumps({"pairs_s": pairs, "ratios": ratios, "growth": sizes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
