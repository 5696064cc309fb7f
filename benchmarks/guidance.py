"""Compare moves arguments by findings with a fixed and a random order: the playbook on the CPU.

    python benchmarks/guidance.py --out FILE [--tasks 32] [--candidates 8] [--level 1 2] [--seed 0] [--plain]
                                    [--part 1/3]

For each built-in task that the playbook can write (at its CPU size), four runs with the same budget,
policy and seed:

- `guided` tries the moves that answer the findings first, then the rest in the order of the playbook's list;
- `raw` does the same with each diagnostic's raw estimate, without the time account, which ranks causes before
  symptoms and shares their gains;
- `fixed` tries all moves in the order of the list;
- `random` tries them in an order that depends on the run's seed, the task and the parent.

Guided over raw is the value of the account, guided over fixed that of the findings, and guided over random
that of findings and list order together. All runs begin with the same designs; with `--plain`, with the
plainest design only, so that moves must find everything that makes a kernel fast. The compiler's code, tuning
and knowledge of earlier runs are off.

Two things are compared, each by geometric mean and the p-value of a Wilcoxon signed-rank test over tasks:

- at the end: the winners, judged again in alternation with `--full`;
- on the way: the best time so far after each candidate, averaged (in logs) over the budget. A kernel that
  several runs judged gets the least of its times in all of them, so that runs which try the same kernels in
  the same order are equal.

Results are appended to FILE (JSON lines); the same command continues after the last finished task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from policies import wilcoxon  # noqa: E402

from kernelpro.authors.author import Assignment, Draft, NoProposal  # noqa: E402
from kernelpro.authors.playbook.playbook import Order, Playbook  # noqa: E402
from kernelpro.diagnose.claims import UNEXPLAINED  # noqa: E402
from kernelpro.engine.loop import Engine  # noqa: E402
from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.pools.local import LocalPool  # noqa: E402
from kernelpro.records import BadInput, Candidate, Job, Limits, Options, RunConfig, Task  # noqa: E402
from kernelpro.suites import problems  # noqa: E402

ORDERS: dict[str, Order] = {"guided": "findings", "raw": "findings", "fixed": "fixed", "random": "random"}
OTHERS = ("raw", "fixed", "random")
OPTIONS = Options(effort="quick", baselines=("eager_fp32",))


class PlainPlaybook(Playbook):
    """The playbook with its plainest design only."""

    def design_count(self, assignment: Assignment) -> int:
        """One design."""
        return 1

    async def write(self, assignment: Assignment) -> Draft:
        """Write a draft; raise NoProposal for a second design."""
        if assignment.action == "seed" and assignment.attempt:
            raise NoProposal("only one design is used")
        return await super().write(assignment)


class RawPlaybook(Playbook):
    """The playbook with findings as each diagnostic alone makes them: by raw gain, none a symptom."""

    async def write(self, assignment: Assignment) -> Draft:
        """Write a draft from the raw findings."""
        alone = [finding for finding in assignment.findings if finding.diagnostic != UNEXPLAINED]
        alone.sort(key=lambda finding: (-finding.gain.factor, finding.diagnostic))
        raw = tuple(replace(finding, explained_by="") for finding in alone)
        return await super().write(replace(assignment, findings=raw))


class PlainRawPlaybook(PlainPlaybook, RawPlaybook):
    """Both."""


def search(
    pool: LocalPool, task: Task, name: str, candidates: int, plain: bool, seed: int
) -> dict[str, Any] | None:
    """Run one search; returns its winner and all candidates with their times. None: no candidate passed."""
    with tempfile.TemporaryDirectory(prefix="guidance-") as runs_dir:
        raw = name == "raw"
        kind = (PlainRawPlaybook if raw else PlainPlaybook) if plain else RawPlaybook if raw else Playbook
        author = kind(ORDERS[name], seed)
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
        store = RunStore.create(Path(runs_dir), config, "run")
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
    """The best time after each candidate, from the first that passed on; repeated if the run ended early."""
    best: list[float] = []
    for ms in times:
        if ms or best:
            best.append(min([ms or math.inf, *best[-1:]]))
    return best + best[-1:] * (candidates - len(times))


def least_times(runs: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The least time of each kernel that passed, over all runs."""
    least: dict[str, float] = {}
    for source, ms in (pair for run in runs for pair in run["tried"]):
        if ms:
            least[source] = min(ms, least.get(source, math.inf))
    return least


def ratio_on_the_way(row: dict[str, Any], other: str) -> float:
    """Speed-up of the guided run's best time over the other run's, averaged over the budget."""
    logs = [
        math.log(other_ms / ms)
        for ms, other_ms in zip(row["guided"]["best_ms"], row[other]["best_ms"], strict=False)
    ]
    return math.exp(sum(logs) / len(logs))


def judge_again(pool: LocalPool, task: Task, sources: dict[str, str]) -> dict[str, float]:
    """Milliseconds of each source: the better of two full judgements, in alternation."""
    times: dict[str, list[float]] = {name: [] for name in sources}
    for name in [*sources, *reversed(sources)]:
        options = Options(effort="full", baselines=("eager_fp32",))
        verdict = pool.run(Job(name, "judge", task, Candidate(sources[name], name), "cpu", options)).verdict
        if verdict and "candidate" in verdict.times:
            times[name].append(verdict.times["candidate"].value)
    return {name: min(values) for name, values in times.items() if values}


def compare(
    pool: LocalPool, task: Task, candidates: int, plain: bool, seed: int, turn: int
) -> dict[str, Any]:
    """Run all searches on a task and compare them; `turn` rotates their order."""
    winners = {}
    first = turn % len(ORDERS)
    for name in [*ORDERS, *ORDERS][first : first + len(ORDERS)]:
        try:
            winner = search(pool, task, name, candidates, plain, seed)
        except BadInput as error:
            return {"left_out": str(error)}
        if winner is None:
            return {"left_out": "no candidate of the playbook passed"}
        winners[name] = winner
    named = {winner["source"]: name for name, winner in reversed(winners.items())}
    least = least_times(winners.values())
    row: dict[str, Any] = {
        name: {
            "step": winner["step"],
            "best_ms": best_so_far([ms and least[source] for source, ms in winner["tried"]], candidates),
            "plan": winner["plan"],
        }
        for name, winner in winners.items()
    }
    kernels = (
        judge_again(pool, task, {name: source for source, name in named.items()}) if len(named) > 1 else {}
    )
    if kernels.keys() != set(named.values()) and len(named) > 1:
        return row | {"left_out": "a winner did not pass when judged again"}
    ms = {name: kernels.get(named[winner["source"]], 1.0) for name, winner in winners.items()}
    return row | {
        "ms": ms if kernels else {},
        "ratios": {other: ms[other] / ms["guided"] for other in OTHERS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="append the results here")
    parser.add_argument("--tasks", type=int, default=32, help="stop after so many tasks with results")
    parser.add_argument("--candidates", type=int, default=8, help="for each run")
    parser.add_argument(
        "--level", type=int, nargs="*", default=[], help="levels of built-in tasks; default: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="begin with the plainest design only")
    parser.add_argument(
        "--part", default="1/1", metavar="I/N", help="every N-th task from the I-th on, on cores of its own"
    )
    arguments = parser.parse_args()
    rows = (
        [json.loads(line) for line in arguments.out.read_text().splitlines()]
        if arguments.out.exists()
        else []
    )
    finished = {row["task"] for row in rows}
    part, parts = map(int, arguments.part.split("/"))
    with LocalPool() as pool, arguments.out.open("a") as out:
        for turn, problem in enumerate(problems.find_problems("builtin", arguments.level, "", "cpu")):
            if sum("ratios" in row for row in rows) >= arguments.tasks:
                break
            if problem.label in finished or turn % parts != part - 1:
                continue
            row = {"task": problem.label} | compare(
                pool, problem.task, arguments.candidates, arguments.plain, arguments.seed, turn
            )
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            summary = row.get("left_out") or ", ".join(
                f"over {name} {ratio:.3f}" for name, ratio in row["ratios"].items()
            )
            print(row["task"], summary, file=sys.stderr, flush=True)
    print_results([row for row in rows if "ratios" in row], [row for row in rows if "ratios" not in row])


def print_results(rows: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
    """Print a Markdown table of the tasks and the comparisons over all of them."""
    columns = [
        *(f"{name}, ms" for name in ORDERS),
        *(f"{when}, over {other}" for other in OTHERS for when in ("end", "on the way")),
        "found at step",
    ]
    print(f"| task | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for row in rows:
        cells = [f"{row['ms'][name]:.4f}" if row["ms"] else "the same kernel" for name in ORDERS]
        cells += [
            f"{ratio:.3f}x"
            for other in OTHERS
            for ratio in (row["ratios"][other], ratio_on_the_way(row, other))
        ]
        steps = " / ".join(str(row[name]["step"]) for name in ORDERS)
        print(f"| {row['task']} | {' | '.join(cells)} | {steps} |")
    for other in OTHERS:
        print(f"\n{len(rows)} tasks, guided over {other}:")
        at_end = [row["ratios"][other] for row in rows]
        on_the_way = [ratio_on_the_way(row, other) for row in rows]
        for title, ratios in (("at the end", at_end), ("on the way", on_the_way)):
            logs = [math.log(ratio) for ratio in ratios]
            better, worse = sum(log > 0.02 for log in logs), sum(log < -0.02 for log in logs)
            mean = math.exp(sum(logs) / len(logs)) if logs else 1.0
            counts = f"{better} better and {worse} worse by over 2 %"
            print(f"- {title}: {mean:.3f}x, {counts}, Wilcoxon p = {wilcoxon(logs):.2g}")
    for row in left_out:
        print(f"- left out: {row['task']}: {row['left_out']}")


if __name__ == "__main__":
    main()
