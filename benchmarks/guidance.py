"""Do findings choose better moves than a fixed order, and than chance? The playbook with and without a look at them, on the CPU.

    python benchmarks/guidance.py --out FILE [--most 32] [--candidates 8] [--level 1 2] [--seed 0] [--plain]

For each task of our own suite that the playbook can write (at its CPU size), three runs with the same budget, policy and seed:
`guided` takes the moves that answer the findings of its diagnosis, then the rest in the order of the playbook's list; `fixed` takes
all in that order, which its makers chose; `random` in one that depends on the run's seed, the task and the parent. So guided over
fixed is what findings are worth, and guided over random that and the list's order together. All begin with the same designs; with
`--plain` with the plainest one alone, so that all that makes a kernel fast has to be found by moves. The compiler's code, tuning
and what earlier runs learnt are off. Two things are compared, each with its geometric mean and the p-value of a Wilcoxon
signed-rank test over the tasks:

- in the end: the winners, judged again one after the other at full length;
- on the way: the best so far after each candidate, averaged (in logs) over the budget. A kernel that several runs judged has the
  least of its times in all of them, so that runs which try the same kernels in the same order are the same.

FILE (JSON lines) is added to: called again, it goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from policies import wilcoxon  # noqa: E402

from kernelpro.authors.author import Assignment, Draft, NoProposal  # noqa: E402
from kernelpro.authors.playbook.playbook import Order, Playbook  # noqa: E402
from kernelpro.engine.loop import Engine  # noqa: E402
from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.pools.local import Pool  # noqa: E402
from kernelpro.records import BadInput, Candidate, Job, Limits, Options, RunConfig, Task  # noqa: E402
from kernelpro.suites import problems  # noqa: E402

ORDERS: dict[str, Order] = {"guided": "findings", "fixed": "fixed", "random": "random"}
OTHERS = ("fixed", "random")
OPTIONS = Options(effort="quick", baselines=("eager_fp32",))


class Plain(Playbook):
    """Begins with its first design alone."""

    def design_count(self, assignment: Assignment) -> int:
        return 1

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.action == "seed" and assignment.attempt:
            raise NoProposal("one design is enough")
        return await super().write(assignment)


def searched(
    pool: Pool, task: Task, name: str, candidates: int, plain: bool, seed: int
) -> dict[str, Any] | None:
    """The winner of one run: its source and its place, and all candidates with their times. None: the playbook cannot write it."""
    with tempfile.TemporaryDirectory(prefix="guidance-") as home:
        author = (Plain if plain else Playbook)(ORDERS[name], seed)
        config = RunConfig(
            task,
            "cpu",
            author.name,
            limits=Limits(candidates, stop_at_floor=0.0),
            options=OPTIONS,
            tune_points=0,
            compile_seed=False,
            knowledge=False,
            finalists=0,
            seed=seed,
        )
        store = RunStore.create(Path(home), config, "run")
        outcome = asyncio.run(Engine(store, pool, author).run())
        steps = [step for step in store.steps() if step.verdict]
        if outcome.best is None:
            return None
        best = next(step for step in steps if step.number == outcome.best)
        return {
            "step": best.number,
            "source": store.source(best.final_source),
            "tried": [(step.final_source, step.ms) for step in steps],
            "plan": best.plan,
        }


def best_so_far(times: list[float | None], candidates: int) -> list[float]:
    """After each candidate, from the first that works on; a run that had no more ideas stays where it was."""
    found: list[float] = []
    for ms in times:
        if ms or found:
            found.append(min([ms or math.inf, *found[-1:]]))
    return found + found[-1:] * (candidates - len(times))


def least_times(runs: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Of each kernel that was right, over all runs."""
    found: dict[str, float] = {}
    for source, ms in (pair for run in runs for pair in run["tried"]):
        if ms:
            found[source] = min(ms, found.get(source, math.inf))
    return found


def on_the_way(row: dict[str, Any], other: str) -> float:
    """How many times faster the guided run's best was than the other's, on average over the budget."""
    logs = [math.log(b / a) for a, b in zip(row["guided"]["best_ms"], row[other]["best_ms"], strict=False)]
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


def compare(pool: Pool, task: Task, candidates: int, plain: bool, seed: int, turn: int) -> dict[str, Any]:
    winners = {}
    for name in [*ORDERS, *ORDERS][turn % 3 : turn % 3 + 3]:
        try:
            found = searched(pool, task, name, candidates, plain, seed)
        except BadInput as error:
            return {"left_out": str(error)}
        if found is None:
            return {"left_out": "no candidate of the playbook passed"}
        winners[name] = found
    first = {found["source"]: name for name, found in reversed(winners.items())}
    least = least_times(winners.values())
    row: dict[str, Any] = {
        name: {
            "step": found["step"],
            "best_ms": best_so_far([ms and least[source] for source, ms in found["tried"]], candidates),
            "plan": found["plan"],
        }
        for name, found in winners.items()
    }
    kernels = (
        milliseconds(pool, task, {name: source for source, name in first.items()}) if len(first) > 1 else {}
    )
    if kernels.keys() != set(first.values()) and len(first) > 1:
        return row | {"left_out": "a winner did not pass again"}
    ms = {name: kernels.get(first[found["source"]], 1.0) for name, found in winners.items()}
    return row | {
        "ms": ms if kernels else {},
        "ratios": {other: ms[other] / ms["guided"] for other in OTHERS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=32, help="tasks that count")
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--level", type=int, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="begin with the plainest design alone")
    chosen = parser.parse_args()
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    known = {row["task"] for row in rows}
    with Pool() as pool, chosen.out.open("a") as out:
        for turn, problem in enumerate(problems.find("builtin", chosen.level, "", "cpu")):
            if sum("ratios" in row for row in rows) >= chosen.most:
                break
            if problem.label in known:
                continue
            row = {"task": problem.label} | compare(
                pool, problem.task, chosen.candidates, chosen.plain, chosen.seed, turn
            )
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            told = row.get("left_out") or ", ".join(
                f"over {name} {ratio:.3f}" for name, ratio in row["ratios"].items()
            )
            print(row["task"], told, file=sys.stderr, flush=True)
    show([row for row in rows if "ratios" in row], [row for row in rows if "ratios" not in row])


def show(rows: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
    heads = [
        *(f"{name}, ms" for name in ORDERS),
        *(f"{when}, over {other}" for other in OTHERS for when in ("end", "way")),
        "found at step",
    ]
    print(f"| task | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for row in rows:
        cells = [f"{row['ms'][name]:.4f}" if row["ms"] else "the same kernel" for name in ORDERS]
        cells += [
            f"{ratio:.3f}x" for other in OTHERS for ratio in (row["ratios"][other], on_the_way(row, other))
        ]
        print(
            f"| {row['task']} | {' | '.join(cells)} | {' / '.join(str(row[name]['step']) for name in ORDERS)} |"
        )
    for other in OTHERS:
        print(f"\n{len(rows)} tasks, guided over {other}:")
        ends, ways = [row["ratios"][other] for row in rows], [on_the_way(row, other) for row in rows]
        for title, ratios in (("in the end", ends), ("on the way", ways)):
            logs = [math.log(ratio) for ratio in ratios]
            better, worse = sum(log > 0.02 for log in logs), sum(log < -0.02 for log in logs)
            mean = math.exp(sum(logs) / len(logs)) if logs else 1.0
            print(
                f"- {title}: {mean:.3f}x, {better} better and {worse} worse by over 2 %, Wilcoxon p = {wilcoxon(logs):.2g}"
            )
    for row in left_out:
        print(f"- left out: {row['task']}: {row['left_out']}")


if __name__ == "__main__":
    main()
