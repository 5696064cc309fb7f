"""Searching for less energy at the same speed: what `--objective energy-at-speed` finds on tasks of our own suite.

    python benchmarks/energy_search.py [--out FILE] [--candidates 6] [--home DIR] [NAME ...]       # NAME: 07_gelu

For each task a run of the playbook, without a model, that looks for the least energy among kernels within 2 % of the fastest. The
table holds the winner against the fastest finalist of its run (the saving at matched speed) and against the fastest baseline. All
finalists are judged at full length, with five windows of energy each, in turn with the baseline; the interval of a saving is made
of both sides' intervals at their worst. FILE gets every finalist. Needs a GPU whose joules can be counted. With DIR, runs are kept
there, and the same command goes on where it was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.engine import session  # noqa: E402
from kernelpro.pools.local import Pool  # noqa: E402
from kernelpro.records import BadInput, Limits, RunConfig, Task  # noqa: E402

SUITE = ROOT / "src" / "kernelpro" / "suites" / "own"
DEFAULT = ("10_softcap_softmax", "07_gelu", "11_adaptive_layer_norm")


def searched(pool: Pool, task: Task, candidates: int, home: Path) -> dict[str, Any]:
    config = RunConfig(
        task,
        "cuda",
        "playbook",
        constants={"seeds": 3},  # the compiler's and two designs, so that a few candidates answer what is said of their energy
        limits=Limits(candidates, floor_share=0.0),
        tune_points=4,
        knowledge=False,
        finalists=2,
        objective="energy-at-speed",
    )
    store = session.store_for(home, config, task.name)
    outcome = asyncio.run(session.work(store, pool, lambda kind, data: progress(task.name, kind, data), explain=False))
    steps = {step.number: step for step in store.steps()}
    points = [point for point in outcome.front if point.step in outcome.finalists]
    return {
        "task": task.name,
        "winner": outcome.best,
        "verdict": outcome.verdict.to_json() if outcome.verdict else None,
        "finalists": [
            point.to_json() | {"plan": steps[point.step].plan, "source": store.source(steps[point.step].final_source)}
            for point in points
        ],
        "notes": outcome.notes,
        "steps": [{"step": n, "state": step.state, "ms": step.ms, "plan": step.plan} for n, step in steps.items()],
    }


def progress(task: str, kind: str, data: dict[str, Any]) -> None:
    if kind != "progress":
        print(f"{time.strftime('%H:%M:%S')} {task}: {kind} {data.get('step', '')}", file=sys.stderr, flush=True)


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    points = {point["step"]: point for point in found["finalists"]}
    winner = points.get(found["winner"])
    if winner is None or found["verdict"] is None:
        return f"| {found['task']} | no energy: {'; '.join(found['notes'])} | | | | |"
    fastest = min(points.values(), key=lambda point: point["ms"])
    least, most = (saved(winner["energy"], fastest["energy"], at) for at in ("low", "high"))
    against = (
        "is the fastest" if winner is fastest else f"{saved(winner['energy'], fastest['energy']):.1%} [{least:.1%}, {most:.1%}]"
    )
    speed = found["verdict"]["speedup"][winner["against"]]["value"]
    ratio = winner["energy"]
    baseline = f"{1 - ratio['value']:.1%} [{1 - ratio['high']:.1%}, {1 - ratio['low']:.1%}]"
    slower = winner["ms"] / fastest["ms"] - 1
    return f"| {found['task']} | {winner['ms']:.4f} | {slower:+.1%} | {against} | {winner['against']} {speed:.2f}x | {baseline} |"


def saved(winner: dict[str, float], other: dict[str, float], at: str = "value") -> float:
    """Share of the other's energy that the winner does not need, at best (`high`) and at worst (`low`)."""
    mine, its = {"value": ("value", "value"), "low": ("high", "low"), "high": ("low", "high")}[at]
    return 1 - winner[mine] / other[its]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, help="tasks of our own suite")
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--out", type=Path, help="write everything here, as JSON")
    parser.add_argument("--home", type=Path, help="keep the runs here")
    chosen = parser.parse_args()
    paths = {name: next(SUITE.glob(f"level*/{name}.py"), None) for name in chosen.names}
    if unknown := [name for name, path in paths.items() if path is None]:
        parser.error(f"no task of our own suite is called {', '.join(unknown)}")
    found = []
    print("| task | winner, ms | than the fastest | saving at matched speed | speed | saving against the baseline |")
    print("|---|---|---|---|---|---|", flush=True)
    with Pool() as pool, tempfile.TemporaryDirectory(prefix="energy-search-") as scratch:
        for path in paths.values():
            assert path
            try:
                found.append(
                    searched(pool, Task.from_file(path).for_target("cuda"), chosen.candidates, chosen.home or Path(scratch))
                )
            except BadInput as error:
                found.append({"task": path.stem, "winner": None, "verdict": None, "finalists": [], "notes": [str(error)]})
            print(row(found[-1]), flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
