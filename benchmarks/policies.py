"""Compare search policies on simulated tasks, at equal budget.

    python benchmarks/policies.py [--tasks 600] [--out DIR]            # writes policies.md and policies.svg
    python benchmarks/policies.py --tune mcts [--configurations 96]   # chooses constants
    python benchmarks/policies.py --sweep-seeds [--tasks 150]         # seeds of mcts by budget

1. Every policy searches the same tasks (`--tasks` of each kind, seeds from 30,000 on): 75 candidates,
   concurrency 2. Only mcts knows the budget, for the number of its first seeds; the state after 30
   candidates is reported as well.
2. The score of a search is the true speed-up over the baseline of the node that was measured fastest, after
   30 and 75 candidates.
3. Pairs of policies are compared task by task: wins, and the Wilcoxon signed-rank test on log speed-ups.
4. The time of choose + add + settle by size of the tree.

Tuning uses only seeds 0 to 199 of each kind. It compares the present constants and random ones by their
mean log speed-up (30 and 75 candidates, equal weight) over 100, 300 and 1,000 tasks, with successive
halving; then again with mutations of the two best.
"""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from simulation.landscapes import KINDS, generate  # noqa: E402
from simulation.simulator import simulate  # noqa: E402

from kernelpro.search import POLICIES, Policy, Tree, make_policy  # noqa: E402

BUDGETS = (30, 75)
"""STARK's budget and KernelPro's."""
CONCURRENCY = 2
SWEPT_BUDGETS, SWEPT_SEEDS = (5, 8, 12, 20, 30, 45, 75), (2, 3, 4, 6, 8, 10, 12)
FIRST_SEED = 30_000
"""Of the tasks that the page reports."""
TUNING_SEEDS = 200
RUNGS = ((100, 0.25), (300, 0.25), (1000, 0.0))
"""Tasks seen so far, and the share of configurations that continues."""

ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "mcts": ("mcts", {}),
    "epsilon-greedy": ("epsilon-greedy", {}),
    "epsilon-greedy, tuned": ("epsilon-greedy", {"epsilon": 0.2, "max_seeds": 12, "max_failures": 8}),
    "beam": ("beam", {}),
    "greedy": ("greedy", {}),
    "greedy, tuned": ("greedy", {"seeds": 12}),
    "best-of-n": ("best-of-n", {}),
}
VARIANTS: dict[str, dict[str, float]] = {
    "no fresh seeds": {"seed_interval": 100000},
    "4 seeds first": {"seeds": 4},
    "wide (square root of n)": {"width": 1.0},
    "no fixes": {"max_fixes": 0},
    "3 fixes": {"max_fixes": 3},
    "failed branches stay open": {"max_failures": 100000},
    "slow branches stay open": {"patience": 100000},
    "mean instead of best reward": {"best_weight": 0.0},
    "no exploration term": {"exploration": 0.0},
    "no virtual loss": {"virtual_loss": 0.0},
    "no combinations": {"combine_interval": 0},
    "every third improvement a combination": {"combine_interval": 3},
}
"""mcts with one part switched off or changed."""
MARK = "<!-- below: written by benchmarks/policies.py -->"
COLORS = ("#c0392b", "#2471a3", "#7fb3d5", "#1e8449", "#7d6608", "#d4ac0d", "#7f8c8d")
SPACE: dict[str, dict[str, list[float]]] = {
    "mcts": {
        "seeds": [2, 3, 4, 6, 8, 10, 12, 15], "seed_interval": [6, 8, 12, 20, 40, 1000],
        "width": [0.3, 0.5, 0.7, 1.0, 1.4, 2.0], "alpha": [0.2, 0.3, 0.4, 0.5, 0.6],
        "exploration": [0.02, 0.05, 0.1, 0.2, 0.3, 0.5], "best_weight": [0.3, 0.6, 0.8, 0.9, 1.0],
        "fix_discount": [0.3, 0.5, 0.7, 0.85, 0.95], "virtual_loss": [0.0, 0.1, 0.2, 0.5],
        "max_fixes": [1, 2, 3, 4, 6], "max_failures": [3, 4, 6, 8, 12, 1000],
        "patience": [1, 2, 3, 4, 6, 1000],
    },
    "epsilon-greedy": {
        "epsilon": [0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7], "max_seeds": [3, 5, 8, 12, 16, 24],
        "max_failures": [2, 3, 4, 6, 8],
    },
    "beam": {"seeds": [2, 4, 6, 8, 12, 16], "width": [1, 2, 3, 4, 6, 8], "branch": [1, 2, 3, 4]},
    "greedy": {"seeds": [1, 2, 3, 4, 6, 8, 10, 12, 15, 20]},
}  # fmt: skip


def search(policy: Policy, kind: str, seed: int, budget: int = BUDGETS[-1]) -> list[float]:
    """Log speed-up after each candidate."""
    task = generate(kind, seed)
    return [
        math.log(task.baseline_ms / ms)
        for ms in simulate(policy, task, budget, CONCURRENCY, random.Random(seed))
    ]


def wilcoxon(differences: list[float]) -> float:
    """Two-sided p-value of the signed-rank test: normal approximation, corrected for ties, without zeros."""
    nonzero = sorted((difference for difference in differences if abs(difference) > 1e-12), key=abs)
    count = len(nonzero)
    if count == 0:
        return 1.0
    plus = ties = 0.0
    start = 0
    while start < count:
        end = start
        while end < count and abs(abs(nonzero[end]) - abs(nonzero[start])) <= 1e-12:
            end += 1
        rank = (start + 1 + end) / 2
        plus += rank * sum(difference > 0 for difference in nonzero[start:end])
        ties += (end - start) ** 3 - (end - start)
        start = end
    variance = count * (count + 1) * (2 * count + 1) / 24 - ties / 48
    return math.erfc(abs(plus - count * (count + 1) / 4) / math.sqrt(2 * variance))


def geomean(logs: list[float]) -> float:
    """The geometric mean of values arguments by their logarithms."""
    return math.exp(sum(logs) / len(logs))


def step_microseconds(name: str, sizes: list[int]) -> list[float]:
    """Microseconds of choose + add + settle at each size of the tree.

    A third of the candidates fails, and gains shrink towards the floor.
    """
    policy, rng, tree = make_policy(name), random.Random(1), Tree(1.0, 0.1)
    spent: list[float] = []
    while len(tree) < sizes[-1] + 100:
        started = time.process_time()
        choice = policy.choose(tree, rng)
        node = tree.add(choice.parent, choice.action, choice.donor)
        parent_ms = next(ancestor for ancestor in tree.path(choice.parent) if ancestor.state == "ok").ms
        assert parent_ms is not None
        tree.settle(node.id, None if rng.random() < 0.33 else 0.1 + (parent_ms - 0.1) * rng.uniform(0.8, 1.2))
        spent.append(time.process_time() - started)
    return [1e6 * sum(spent[size - 100 : size + 100]) / len(spent[size - 100 : size + 100]) for size in sizes]


def tune(name: str, configurations: int) -> None:
    """Print the best constants of a policy."""
    tasks = [(kind, seed) for seed in range(TUNING_SEEDS) for kind in KINDS]
    rng, space = random.Random(0), SPACE[name]
    size = math.prod(len(values) for values in space.values())
    if size <= configurations:
        trials = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    else:
        present = {key: getattr(make_policy(name), key) for key in space}
        trials = [present] + [
            {key: rng.choice(values) for key, values in space.items()} for _ in range(configurations)
        ]
    finalists = _halve(name, trials, tasks)
    if size > configurations:
        mutants = []
        for _ in range(configurations // 3):
            mutant = dict(rng.choice(finalists[:2]))
            for key in rng.sample(list(space), min(len(space), rng.randint(1, 3))):
                mutant[key] = rng.choice(space[key])
            mutants.append(mutant)
        _halve(name, finalists[:2] + mutants, tasks)


def _halve(name: str, trials: list[dict[str, Any]], tasks: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Successive halving over the rungs; returns the configurations that are left, best first."""
    scores: list[list[float]] = [[] for _ in trials]
    survivors, seen = list(range(len(trials))), 0
    for upto, share in RUNGS:
        for index in survivors:
            policy = make_policy(name, **trials[index])
            for kind, seed in tasks[seen:upto]:
                curve = search(policy, kind, seed)
                scores[index].append(sum(curve[budget - 1] for budget in BUDGETS) / len(BUDGETS))
        survivors.sort(key=lambda index: -sum(scores[index]))
        for index in survivors[:5]:
            print(f"{name} after {upto} tasks: {geomean(scores[index]):.4f}x {trials[index]}", flush=True)
        survivors, seen = survivors[: max(3, int(len(survivors) * share))], upto
    return [trials[index] for index in survivors]


def describe_kind(kind: str, tasks: int) -> list[str]:
    """Table row: how seeds and improvements turn out in tasks of this kind, in searches by mcts."""
    seeds: list[float] = []
    steps: list[float] = []
    seed_failures = step_failures = 0
    for seed in range(FIRST_SEED, FIRST_SEED + tasks):
        task, rng, policy = generate(kind, seed), random.Random(seed), make_policy("mcts")
        tree, hidden = Tree(task.baseline_ms, task.floor_ms), [None]
        for _ in range(BUDGETS[-1]):
            choice = policy.choose(tree, rng)
            node = tree.add(choice.parent, choice.action, choice.donor)
            outcome = task.attempt(tree, node, hidden, rng)
            hidden.append(outcome.hidden)
            tree.settle(node.id, outcome.ms)
            parent_ms = tree.nodes[choice.parent].ms
            if choice.action == "seed":
                seed_failures += outcome.ms is None
                seeds += [] if outcome.ms is None else [task.baseline_ms / outcome.ms]
            elif choice.action == "improve" and parent_ms is not None:
                step_failures += outcome.ms is None
                steps += [] if outcome.ms is None else [parent_ms / outcome.ms]
    seeds.sort()
    attempts = len(steps) + step_failures
    quantiles = " / ".join(f"{seeds[int(len(seeds) * q)]:.2f}x" for q in (0.1, 0.5, 0.9))
    shares = (
        seed_failures / (seed_failures + len(seeds)),
        step_failures / attempts,
        sum(ratio < 1 for ratio in steps) / attempts,
    )
    large = sum(ratio > 1.5 for ratio in steps) / attempts
    return [kind, f"{shares[0]:.0%}", quantiles, f"{shares[1]:.0%}", f"{shares[2]:.0%}", f"{large:.1%}"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def plot(curves: dict[str, list[float]]) -> str:
    """The best speed-up so far (geometric mean) by candidates, as SVG."""
    width, height, left, top = 820, 420, 60, 20
    top_value = math.ceil(max(map(max, curves.values())) * 5) / 5

    def position(count: float, value: float) -> tuple[float, float]:
        x = left + (width - 310) * count / BUDGETS[-1]
        return x, top + (height - 70) * (1 - (value - 1) / (top_value - 1))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">'
    ]
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for step in range(round((top_value - 1) * 5) + 1):
        (x, y), (end, _) = position(0, 1 + step / 5), position(BUDGETS[-1], 1)
        parts.append(f'<path d="M{x:.0f} {y:.1f}H{end:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{1 + step / 5:.1f}x</text>')
    for count in (1, 15, 30, 45, 60, 75):
        x, y = position(count, 1)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{count}</text>')
    x, y = position(BUDGETS[-1] / 2, 1)
    parts.append(f'<text x="{x:.0f}" y="{y + 38:.0f}" text-anchor="middle">candidates judged</text>')
    order = sorted(curves, key=lambda name: -curves[name][-1])
    for name, color in zip(ROWS, COLORS, strict=True):
        points = " ".join(
            "{:.1f},{:.1f}".format(*position(count + 1, value)) for count, value in enumerate(curves[name])
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = width - 240, top + 10 + 22 * order.index(name)
        parts.append(f'<path d="M{x} {y - 4}h22" stroke="{color}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{name} {curves[name][-1]:.2f}x</text>')
    return "\n".join([*parts, "</svg>", ""])


def compare(count: int, out: Path) -> None:
    """Compare all policies; writes policies.svg, and in policies.md everything below the mark."""
    started = time.process_time()
    tasks = [(kind, seed) for kind in KINDS for seed in range(FIRST_SEED, FIRST_SEED + count)]
    results = {
        row: [search(make_policy(name, **constants), kind, seed) for kind, seed in tasks]
        for row, (name, constants) in ROWS.items()
    }
    spent = time.process_time() - started
    searches = f"{len(tasks) * len(ROWS)} searches in {spent:.0f} s of one core"
    parts = [f"{len(tasks)} tasks, {count} of each kind; {searches}. Python {platform.python_version()}.\n"]
    for budget in BUDGETS:
        rows = []
        for row, curves in results.items():
            ends = [curve[budget - 1] for curve in curves]
            by_kind = [
                f"{geomean([end for end, task in zip(ends, tasks, strict=True) if task[0] == kind]):.2f}x"
                for kind in KINDS
            ]
            rows.append([row, *by_kind, f"**{geomean(ends):.3f}x**"])
        parts += [
            f"### Geomean over the baseline after {budget} candidates\n",
            table(["policy", *KINDS, "all"], rows),
        ]
    for budget in BUDGETS:
        rows = []
        for a, b in itertools.combinations(ROWS, 2):
            differences = [x[budget - 1] - y[budget - 1] for x, y in zip(results[a], results[b], strict=True)]
            wins, losses = (sum(sign * difference > 0.02 for difference in differences) for sign in (1, -1))
            rows.append(
                [
                    a,
                    b,
                    f"{geomean(differences) - 1:+.1%}",
                    f"{wins} : {losses}",
                    f"{wilcoxon(differences):.1g}",
                ]
            )
        head = ["policy", "against", "geomean", "wins : losses", "Wilcoxon p"]
        parts += [
            f"### Pairs after {budget} candidates\n",
            "A win is a difference of more than 2 %, the noise.\n",
            table(head, rows),
        ]
    rows = []
    for row, curves in results.items():
        for kind in KINDS if row != "mcts" else ():
            pairs = zip(results["mcts"], curves, tasks, strict=True)
            differences = [x[-1] - y[-1] for x, y, (k, _) in pairs if k == kind]
            rows.append([row, kind, f"{geomean(differences) - 1:+.1%}", f"{wilcoxon(differences):.1g}"])
    parts += [
        "### mcts against the others by kind, 75 candidates\n",
        table(["against", "kind", "geomean", "Wilcoxon p"], rows),
    ]
    rows = []
    for variant, constants in VARIANTS.items():
        policy, cells = make_policy("mcts", **constants), [variant]
        curve_pairs = [
            (search(policy, *task), full)
            for task, full in zip(tasks, results["mcts"], strict=True)
            if task[1] % 3 == 0
        ]
        for budget in BUDGETS:
            differences = [curve[budget - 1] - full[budget - 1] for curve, full in curve_pairs]
            cells += [f"{geomean(differences) - 1:+.1%}", f"{wilcoxon(differences):.1g}"]
        rows.append(cells)
    head = ["mcts with", *itertools.chain.from_iterable((f"at {budget}", "p") for budget in BUDGETS)]
    parts += ["### Variants of mcts (every third task)\n", table(head, rows)]
    head = [
        "kind",
        "seeds that fail",
        "working seeds over baseline, 10 / 50 / 90 %",
        "steps that fail",
        "slower",
        "more than 1.5x",
    ]
    parts += [
        "### Statistics of the tasks\n",
        table(head, [describe_kind(kind, min(count, 100)) for kind in KINDS]),
    ]
    sizes = [100, 300, 1000, 3000, 10000]
    rows = [
        [name, *(f"{microseconds:.0f}" for microseconds in step_microseconds(name, sizes))]
        for name in POLICIES
    ]
    parts += [
        "### Microseconds of choose + add + settle by nodes in the tree\n",
        table(["policy", *map(str, sizes)], rows),
    ]
    page = out / "policies.md"
    text = page.read_text(encoding="utf-8").split(MARK)[0] if page.exists() else "# Search policies\n\n"
    page.write_text(text + MARK + "\n\n" + "\n".join(parts), encoding="utf-8")
    means = {
        row: [geomean(list(column)) for column in zip(*curves, strict=True)]
        for row, curves in results.items()
    }
    (out / "policies.svg").write_text(plot(means), encoding="utf-8")
    print("\n".join(parts))


def sweep_seeds(count: int) -> None:
    """Print the geomean speed-up of mcts by budget and number of seeds."""
    rows = []
    for seeds in (0, *SWEPT_SEEDS):
        means = []
        for budget in SWEPT_BUDGETS:
            policy = make_policy("mcts", seeds=seeds)
            logs = [search(policy, kind, seed, budget)[-1] for kind in KINDS for seed in range(count)]
            means.append(f"{geomean(logs):.3f}")
        rows.append([str(seeds) if seeds else "by the budget", *means])
        print(" ".join(rows[-1]), flush=True)
    print(table(["seeds", *(f"{budget} candidates" for budget in SWEPT_BUDGETS)], rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=600, help="tasks of each kind")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    parser.add_argument("--tune", choices=sorted(SPACE), help="choose the constants of this policy instead")
    parser.add_argument("--configurations", type=int, default=96, help="random configurations to try")
    parser.add_argument("--sweep-seeds", action="store_true", help="seeds of mcts by budget instead")
    arguments = parser.parse_args()
    if arguments.sweep_seeds:
        sweep_seeds(arguments.tasks)
    elif arguments.tune:
        tune(arguments.tune, arguments.configurations)
    else:
        compare(arguments.tasks, arguments.out)


if __name__ == "__main__":
    main()
