"""Search policies against each other on simulated tasks, at equal budget.

    python benchmarks/policies.py [--tasks 600] [--out benchmarks/results]      # compare: writes policies.md and .svg
    python benchmarks/policies.py --tune mcts [--configurations 96]           # choose constants, on other tasks

1. Every policy searches the same tasks (`--tasks` of each kind, seeds from 30,000 on): 75 candidates, two in flight. No
   policy knows the budget, so the state after 30 candidates is what a budget of 30 gives.
2. The score of a search is the true speed-up over the baseline of the node that was measured fastest; at 30 and at 75.
3. Pairs of policies are compared task by task: wins, and the Wilcoxon signed-rank test on log speed-ups.
4. Growth: time of choose + add + settle against the size of the tree.

Tuning uses seeds 0 to 199 of each kind and nothing else: the present constants and random ones, sifted by their mean log
speed-up (at 30 and 75, equal weight) over 100, 300 and 1,000 tasks; then again with mutations of the two best.
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
REPORTED_FROM = 30_000
TUNED_ON = 200
RUNGS = ((100, 0.25), (300, 0.25), (1000, 0.0))
"""Tasks seen, and the share of configurations that goes on."""

ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "mcts": ("mcts", {}),
    "epsilon-greedy": ("epsilon-greedy", {}),
    "epsilon-greedy, tuned": ("epsilon-greedy", {"epsilon": 0.2, "max_seeds": 12, "max_failures": 8}),
    "beam": ("beam", {}),
    "greedy": ("greedy", {}),
    "greedy, tuned": ("greedy", {"seeds": 12}),
    "best-of-n": ("best-of-n", {}),
}
WITHOUT: dict[str, dict[str, float]] = {
    "no fresh seeds": {"seed_interval": 100000},
    "4 seeds first": {"seeds": 4},
    "wide (square root of n)": {"width": 1.0},
    "no fixes": {"max_fixes": 0},
    "3 fixes": {"max_fixes": 3},
    "no closing of failed branches": {"max_failures": 100000},
    "no closing of slow branches": {"patience": 100000},
    "mean instead of best reward": {"best_weight": 0.0},
    "no exploration term": {"exploration": 0.0},
    "no virtual loss": {"virtual_loss": 0.0},
    "no combinations": {"combine_interval": 0},
    "every third improvement a combination": {"combine_interval": 3},
}
"""Parts of mcts, switched off or changed one at a time."""
MARK = "<!-- below: written by benchmarks/policies.py -->"
COLOURS = ("#c0392b", "#2471a3", "#7fb3d5", "#1e8449", "#7d6608", "#d4ac0d", "#7f8c8d")
SPACE: dict[str, dict[str, list[float]]] = {
    "mcts": {
        "seeds": [2, 3, 4, 6, 8, 10, 12, 15], "seed_interval": [6, 8, 12, 20, 40, 1000],
        "width": [0.3, 0.5, 0.7, 1.0, 1.4, 2.0], "alpha": [0.2, 0.3, 0.4, 0.5, 0.6],
        "exploration": [0.02, 0.05, 0.1, 0.2, 0.3, 0.5], "best_weight": [0.3, 0.6, 0.8, 0.9, 1.0], "fix_discount": [0.3, 0.5, 0.7, 0.85, 0.95],
        "virtual_loss": [0.0, 0.1, 0.2, 0.5], "max_fixes": [1, 2, 3, 4, 6], "max_failures": [3, 4, 6, 8, 12, 1000], "patience": [1, 2, 3, 4, 6, 1000],
    },
    "epsilon-greedy": {
        "epsilon": [0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7], "max_seeds": [3, 5, 8, 12, 16, 24], "max_failures": [2, 3, 4, 6, 8],
    },
    "beam": {"seeds": [2, 4, 6, 8, 12, 16], "width": [1, 2, 3, 4, 6, 8], "branch": [1, 2, 3, 4]},
    "greedy": {"seeds": [1, 2, 3, 4, 6, 8, 10, 12, 15, 20]},
}  # fmt: skip


def search(policy: Policy, kind: str, seed: int) -> list[float]:
    """Log speed-up after each candidate."""
    task = generate(kind, seed)
    return [
        math.log(task.baseline_ms / ms)
        for ms in simulate(policy, task, BUDGETS[-1], CONCURRENCY, random.Random(seed))
    ]


def wilcoxon(differences: list[float]) -> float:
    """Two-sided p of the signed-rank test: normal approximation, mean ranks and corrected variance for ties; zeros are dropped."""
    kept = sorted((each for each in differences if abs(each) > 1e-12), key=abs)
    count = len(kept)
    if count == 0:
        return 1.0
    plus = ties = 0.0
    at = 0
    while at < count:
        end = at
        while end < count and abs(abs(kept[end]) - abs(kept[at])) <= 1e-12:
            end += 1
        rank = (at + 1 + end) / 2
        plus += rank * sum(each > 0 for each in kept[at:end])
        ties += (end - at) ** 3 - (end - at)
        at = end
    variance = count * (count + 1) * (2 * count + 1) / 24 - ties / 48
    return math.erfc(abs(plus - count * (count + 1) / 4) / math.sqrt(2 * variance))


def geomean(logs: list[float]) -> float:
    return math.exp(sum(logs) / len(logs))


def growth(name: str, sizes: list[int]) -> list[float]:
    """Microseconds of one choose + add + settle around each size of the tree. A third fails; gains dry up towards the floor."""
    policy, rng, tree = make_policy(name), random.Random(1), Tree(1.0, 0.1)
    spent: list[float] = []
    while len(tree) < sizes[-1] + 100:
        began = time.process_time()
        choice = policy.choose(tree, rng)
        node = tree.add(choice.parent, choice.action, choice.donor)
        above = next(each for each in tree.path(choice.parent) if each.state == "ok").ms
        assert above is not None
        tree.settle(node.id, None if rng.random() < 0.33 else 0.1 + (above - 0.1) * rng.uniform(0.8, 1.2))
        spent.append(time.process_time() - began)
    return [1e6 * sum(spent[size - 100 : size + 100]) / len(spent[size - 100 : size + 100]) for size in sizes]


def tune(name: str, configurations: int) -> None:
    tasks = [(kind, seed) for seed in range(TUNED_ON) for kind in KINDS]
    rng, space = random.Random(0), SPACE[name]
    everything = math.prod(len(values) for values in space.values())
    if everything <= configurations:
        tried = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    else:
        present = {key: getattr(make_policy(name), key) for key in space}
        tried = [present] + [
            {key: rng.choice(values) for key, values in space.items()} for _ in range(configurations)
        ]
    finalists = _halve(name, tried, tasks)
    if everything > configurations:
        mutants = []
        for _ in range(configurations // 3):
            mutant = dict(rng.choice(finalists[:2]))
            for key in rng.sample(list(space), min(len(space), rng.randint(1, 3))):
                mutant[key] = rng.choice(space[key])
            mutants.append(mutant)
        _halve(name, finalists[:2] + mutants, tasks)


def _halve(name: str, tried: list[dict[str, Any]], tasks: list[tuple[str, int]]) -> list[dict[str, Any]]:
    scores: list[list[float]] = [[] for _ in tried]
    alive, seen = list(range(len(tried))), 0
    for upto, share in RUNGS:
        for at in alive:
            policy = make_policy(name, **tried[at])
            for kind, seed in tasks[seen:upto]:
                curve = search(policy, kind, seed)
                scores[at].append(sum(curve[budget - 1] for budget in BUDGETS) / len(BUDGETS))
        alive.sort(key=lambda at: -sum(scores[at]))
        for at in alive[:5]:
            print(f"{name} after {upto} tasks: {geomean(scores[at]):.4f}x {tried[at]}", flush=True)
        alive, seen = alive[: max(3, int(len(alive) * share))], upto
    return [tried[at] for at in alive]


def character(kind: str, tasks: int) -> list[str]:
    """What seeds and improvements give in this kind, in searches by mcts."""
    seeds: list[float] = []
    steps: list[float] = []
    seed_failures = step_failures = 0
    for seed in range(REPORTED_FROM, REPORTED_FROM + tasks):
        task, rng, policy = generate(kind, seed), random.Random(seed), make_policy("mcts")
        tree, hidden = Tree(task.baseline_ms, task.floor_ms), [None]
        for _ in range(BUDGETS[-1]):
            choice = policy.choose(tree, rng)
            node = tree.add(choice.parent, choice.action, choice.donor)
            outcome = task.attempt(tree, node, hidden, rng)
            hidden.append(outcome.hidden)
            tree.settle(node.id, outcome.ms)
            above = tree.nodes[choice.parent].ms
            if choice.action == "seed":
                seed_failures += outcome.ms is None
                seeds += [] if outcome.ms is None else [task.baseline_ms / outcome.ms]
            elif choice.action == "improve" and above is not None:
                step_failures += outcome.ms is None
                steps += [] if outcome.ms is None else [above / outcome.ms]
    seeds.sort()
    tried = len(steps) + step_failures
    quantiles = " / ".join(f"{seeds[int(len(seeds) * q)]:.2f}x" for q in (0.1, 0.5, 0.9))
    shares = (
        seed_failures / (seed_failures + len(seeds)),
        step_failures / tried,
        sum(each < 1 for each in steps) / tried,
    )
    large = sum(each > 1.5 for each in steps) / tried
    return [kind, f"{shares[0]:.0%}", quantiles, f"{shares[1]:.0%}", f"{shares[2]:.0%}", f"{large:.1%}"]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(each) + " |" for each in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def picture(curves: dict[str, list[float]]) -> str:
    """Cost curves as SVG: geomean of the best so far, by candidates."""
    wide, high, left, top = 820, 420, 60, 20
    top_value = math.ceil(max(map(max, curves.values())) * 5) / 5
    at = lambda count, value: (
        left + (wide - 310) * count / BUDGETS[-1],
        top + (high - 70) * (1 - (value - 1) / (top_value - 1)),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="13">'
    ]
    parts.append(f'<rect width="{wide}" height="{high}" fill="white"/>')
    for step in range(round((top_value - 1) * 5) + 1):
        (x, y), (end, _) = at(0, 1 + step / 5), at(BUDGETS[-1], 1)
        parts.append(f'<path d="M{x:.0f} {y:.1f}H{end:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{1 + step / 5:.1f}x</text>')
    for count in (1, 15, 30, 45, 60, 75):
        x, y = at(count, 1)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{count}</text>')
    x, y = at(BUDGETS[-1] / 2, 1)
    parts.append(f'<text x="{x:.0f}" y="{y + 38:.0f}" text-anchor="middle">candidates judged</text>')
    order = sorted(curves, key=lambda name: -curves[name][-1])
    for name, colour in zip(ROWS, COLOURS, strict=True):
        points = " ".join(
            "{:.1f},{:.1f}".format(*at(count + 1, value)) for count, value in enumerate(curves[name])
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = wide - 240, top + 10 + 22 * order.index(name)
        parts.append(f'<path d="M{x} {y - 4}h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{name} {curves[name][-1]:.2f}x</text>')
    return "\n".join([*parts, "</svg>", ""])


def compare(count: int, out: Path) -> None:
    """Writes policies.svg, and in policies.md everything below the mark."""
    began = time.process_time()
    tasks = [(kind, seed) for kind in KINDS for seed in range(REPORTED_FROM, REPORTED_FROM + count)]
    found = {
        row: [search(make_policy(name, **constants), kind, seed) for kind, seed in tasks]
        for row, (name, constants) in ROWS.items()
    }
    spent = time.process_time() - began
    searches = f"{len(tasks) * len(ROWS)} searches in {spent:.0f} s of one core"
    parts = [f"{len(tasks)} tasks, {count} of each kind; {searches}. Python {platform.python_version()}.\n"]
    for budget in BUDGETS:
        rows = []
        for row, curves in found.items():
            ends = [curve[budget - 1] for curve in curves]
            by_kind = [
                f"{geomean([e for e, (k, _) in zip(ends, tasks, strict=True) if k == kind]):.2f}x"
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
            differences = [x[budget - 1] - y[budget - 1] for x, y in zip(found[a], found[b], strict=True)]
            wins, losses = (sum(sign * each > 0.02 for each in differences) for sign in (1, -1))
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
            "A win is more than 2 % faster, the noise.\n",
            table(head, rows),
        ]
    rows = []
    for row, curves in found.items():
        for kind in KINDS if row != "mcts" else ():
            pairs = zip(found["mcts"], curves, tasks, strict=True)
            differences = [x[-1] - y[-1] for x, y, (k, _) in pairs if k == kind]
            rows.append([row, kind, f"{geomean(differences) - 1:+.1%}", f"{wilcoxon(differences):.1g}"])
    parts += [
        "### mcts against the others by kind, 75 candidates\n",
        table(["against", "kind", "geomean", "Wilcoxon p"], rows),
    ]
    rows = []
    for what, constants in WITHOUT.items():
        policy, row = make_policy("mcts", **constants), [what]
        pairs = [
            (search(policy, *task), full)
            for task, full in zip(tasks, found["mcts"], strict=True)
            if task[1] % 3 == 0
        ]
        for budget in BUDGETS:
            differences = [curve[budget - 1] - full[budget - 1] for curve, full in pairs]
            row += [f"{geomean(differences) - 1:+.1%}", f"{wilcoxon(differences):.1g}"]
        rows.append(row)
    head = ["mcts with", *itertools.chain.from_iterable((f"at {budget}", "p") for budget in BUDGETS)]
    parts += ["### Parts of mcts, one at a time (every third task)\n", table(head, rows)]
    head = [
        "kind",
        "seeds that fail",
        "working seeds over baseline, 10 / 50 / 90 %",
        "steps that fail",
        "slower",
        "more than 1.5x",
    ]
    parts += [
        "### What the tasks are like\n",
        table(head, [character(kind, min(count, 100)) for kind in KINDS]),
    ]
    sizes = [100, 300, 1000, 3000, 10000]
    rows = [[name, *(f"{each:.0f}" for each in growth(name, sizes))] for name in POLICIES]
    parts += [
        "### Microseconds of choose + add + settle by nodes in the tree\n",
        table(["policy", *map(str, sizes)], rows),
    ]
    page = out / "policies.md"
    words = page.read_text(encoding="utf-8").split(MARK)[0] if page.exists() else "# Search policies\n\n"
    page.write_text(words + MARK + "\n\n" + "\n".join(parts), encoding="utf-8")
    curves = {
        row: [geomean(list(column)) for column in zip(*each, strict=True)] for row, each in found.items()
    }
    (out / "policies.svg").write_text(picture(curves), encoding="utf-8")
    print("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=600, help="tasks of each kind")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--tune", choices=sorted(SPACE))
    parser.add_argument("--configurations", type=int, default=96)
    given = parser.parse_args()
    if given.tune:
        tune(given.tune, given.configurations)
    else:
        compare(given.tasks, given.out)


if __name__ == "__main__":
    main()
