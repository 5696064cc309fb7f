"""Does guidance choose better moves than chance? The playbook with and without a look at the findings, on the CPU.

    python benchmarks/guidance.py --out FILE [--most 32] [--candidates 8] [--level 1 2] [--plain]

For each task of our own suite that the playbook can write (at its CPU size), two runs with the same budget, policy and seed:
one takes the moves that answer the findings of its diagnosis, the other takes the same moves in random order. Both begin with the
same designs; with `--plain` with the plainest one alone, so that all that makes a kernel fast has to be found by moves. The
compiler's code, tuning and memory of other runs are off. Two things are compared, each with its geometric mean and the p-value of a
Wilcoxon signed-rank test over the tasks:

- in the end: the two winners, judged again one after the other at full length;
- on the way: the best so far after each candidate, as judged in its run, averaged (in logs) over the budget.

FILE (JSON lines) is added to: called again, it goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from policies import wilcoxon  # noqa: E402

from kernelpro.authors.author import Assignment, Draft, NoIdea  # noqa: E402
from kernelpro.authors.playbook.playbook import Playbook  # noqa: E402
from kernelpro.engine.loop import Engine  # noqa: E402
from kernelpro.engine.store import Store  # noqa: E402
from kernelpro.pools.local import Pool  # noqa: E402
from kernelpro.records import BadInput, Candidate, Job, Limits, Options, RunConfig, Task  # noqa: E402
from kernelpro.suites import problems  # noqa: E402

AUTHORS = {"guided": "playbook", "random": "playbook:random"}
OPTIONS = Options(effort="quick", baselines=("eager_fp32",))


class Plain(Playbook):
    """Begins with its first design alone."""

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.action == "seed" and assignment.attempt:
            raise NoIdea("one design is enough")
        return await super().write(assignment)


def searched(pool: Pool, task: Task, name: str, candidates: int, plain: bool) -> dict[str, Any] | None:
    """The winner of one run: its source, its place, and the best time after each candidate. None: the playbook cannot write it."""
    with tempfile.TemporaryDirectory(prefix="guidance-") as home:
        config = RunConfig(
            task,
            "cpu",
            AUTHORS[name],
            limits=Limits(candidates, floor_share=0.0),
            options=OPTIONS,
            tune_points=0,
            compiler=False,
            knowledge=False,
            finalists=0,
        )
        store = Store.create(Path(home), config, "run")
        author = (Plain if plain else Playbook)(guided=name == "guided")
        outcome = asyncio.run(Engine(store, pool, author).run())
        steps = [step for step in store.steps() if step.verdict]
        if outcome.best is None:
            return None
        best = next(step for step in steps if step.number == outcome.best)
        return {
            "step": best.number,
            "best_ms": best_so_far([step.ms for step in steps], candidates),
            "source": store.source(best.final_source),
            "plan": best.plan,
        }


def best_so_far(times: list[float | None], candidates: int) -> list[float]:
    """After each candidate, from the first that works on; a run that had no more ideas stays where it was."""
    found: list[float] = []
    for ms in times:
        if ms or found:
            found.append(min([ms or math.inf, *found[-1:]]))
    return found + found[-1:] * (candidates - len(times))


def on_the_way(row: dict[str, Any]) -> float:
    """How many times faster the guided run's best was, on average over the budget."""
    logs = [math.log(b / a) for a, b in zip(row["guided"]["best_ms"], row["random"]["best_ms"], strict=False)]
    return math.exp(sum(logs) / len(logs))


def milliseconds(pool: Pool, task: Task, sources: dict[str, str]) -> dict[str, float]:
    """Of each source, the better of two judgements at full length, in turn."""
    found: dict[str, list[float]] = {name: [] for name in sources}
    for name in [*sources, *reversed(sources)]:
        options = Options(effort="full", baselines=("eager_fp32",))
        verdict = pool.ask(Job(name, "judge", task, Candidate(sources[name], name), "cpu", options)).verdict
        if verdict and "candidate" in verdict.times:
            found[name].append(verdict.times["candidate"].value)
    return {name: min(values) for name, values in found.items() if values}


def compare(pool: Pool, task: Task, candidates: int, plain: bool, turn: int) -> dict[str, Any]:
    winners = {}
    for name in list(AUTHORS) if turn % 2 == 0 else list(AUTHORS)[::-1]:
        try:
            found = searched(pool, task, name, candidates, plain)
        except BadInput as error:
            return {"left_out": str(error)}
        if found is None:
            return {"left_out": "no candidate of the playbook passed"}
        winners[name] = found
    same = winners["guided"]["source"] == winners["random"]["source"]
    row = {name: {key: value for key, value in found.items() if key != "source"} for name, found in winners.items()}
    if same:
        return row | {"ratio": 1.0}
    ms = milliseconds(pool, task, {name: found["source"] for name, found in winners.items()})
    return row | ({"ms": ms, "ratio": ms["random"] / ms["guided"]} if len(ms) == 2 else {"left_out": "a winner did not pass again"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=32, help="tasks that count")
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--level", type=int, nargs="*", default=[])
    parser.add_argument("--plain", action="store_true", help="begin with the plainest design alone")
    chosen = parser.parse_args()
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    known = {row["task"] for row in rows}
    with Pool() as pool, chosen.out.open("a") as out:
        for turn, problem in enumerate(problems.find("own", chosen.level, "", "cpu")):
            if sum("ratio" in row for row in rows) >= chosen.most:
                break
            if problem.label in known:
                continue
            row = {"task": problem.label} | compare(pool, problem.task, chosen.candidates, chosen.plain, turn)
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row["task"], row.get("left_out") or f"{row['ratio']:.3f}", file=sys.stderr, flush=True)
    show([row for row in rows if "ratio" in row], [row for row in rows if "ratio" not in row])


def show(rows: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
    print("| task | guided, ms | random, ms | in the end | on the way | found at step |\n|---|---|---|---|---|---|")
    for row in rows:
        ms = [f"{row['ms'][name]:.4f}" if "ms" in row else "the same kernel" for name in AUTHORS]
        found = f"{row['guided']['step']} / {row['random']['step']}"
        print(f"| {row['task']} | {' | '.join(ms)} | {row['ratio']:.3f}x | {on_the_way(row):.3f}x | {found} |")
    print(f"\n{len(rows)} tasks, guided over random:")
    for title, ratios in (("in the end", [row["ratio"] for row in rows]), ("on the way", [on_the_way(row) for row in rows])):
        logs = [math.log(ratio) for ratio in ratios]
        better, worse = sum(log > 0.02 for log in logs), sum(log < -0.02 for log in logs)
        mean = math.exp(sum(logs) / len(logs)) if logs else 1.0
        print(f"- {title}: {mean:.3f}x, {better} better and {worse} worse by over 2 %, Wilcoxon p = {wilcoxon(logs):.2g}")
    for row in left_out:
        print(f"- left out: {row['task']}: {row['left_out']}")


if __name__ == "__main__":
    main()
