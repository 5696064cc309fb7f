"""Searching for less energy at the same speed: what `--objective energy-at-speed` finds on tasks of our own suite.

    python benchmarks/energy_search.py [--out FILE] [--candidates 4] [--seconds 280] [--home DIR] [NAME ...]     # NAME: 07_gelu

For each task a run of the playbook, without a model, that looks for the least energy among kernels within 2 % of the fastest. The
table holds the winner against the fastest finalist of its run, against the design it came from (what the playbook writes before
anything is said of energy; with the difference in time, so that one sees whether speeds match) and against the fastest baseline.
Finalists are judged at full length, with five windows of energy each, others with three, all in turn with the baseline; the
interval of a saving is made of both sides' intervals at their worst. FILE gets every kernel that was measured. Needs a GPU whose
joules can be counted. With DIR, runs are kept there, and the same command goes on where it was killed.

The tasks are such whose time is DRAM's while costly functions hide behind it (tanh and exp, erf, the division of a sigmoid): quick
forms take 10 to 20 instructions an element less, and of the planted pairs we know that 16 multiply-adds an element are 18 % of the
energy. Products are left out: they are expected at the board's power limit, where energy is time.
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
from kernelpro.records import BadInput, Limits, RunConfig, Step, Task  # noqa: E402

SUITE = ROOT / "src" / "kernelpro" / "suites" / "own"
DEFAULT = ("10_softcap_softmax", "07_gelu", "08_swiglu_gate")
_SEARCH = 0.5
"""Share of a task's time after which no candidate is begun; the rest is for the finals, 45 s each."""


def searched(pool: Pool, task: Task, candidates: int, seconds: float, home: Path) -> dict[str, Any]:
    config = RunConfig(
        task,
        "cuda",
        "playbook",
        constants={"seeds": 2},  # one in each language, so that a few candidates answer what is said of their energy
        limits=Limits(candidates, wall_seconds=_SEARCH * seconds, floor_share=0.0),
        tune_points=4,
        compiler=False,
        knowledge=False,
        finalists=1,
        objective="energy-at-speed",
    )
    store = session.store_for(home, config, task.name)
    outcome = asyncio.run(session.work(store, pool, lambda kind, data: progress(task.name, kind, data), explain=False))
    steps = {step.number: step for step in store.steps()}
    return {
        "task": task.name,
        "winner": outcome.best,
        "verdict": outcome.verdict.to_json() if outcome.verdict else None,
        "finalists": list(outcome.finalists),
        "points": [
            point.to_json() | {"plan": steps[point.step].plan, "source": store.source(steps[point.step].final_source)}
            for point in outcome.front
        ],
        "notes": outcome.notes,
        "steps": [told(step) for step in steps.values()],
    }


def told(step: Step) -> dict[str, Any]:
    known = {"step": step.number, "parent": step.parent, "state": step.state, "ms": step.ms, "plan": step.plan}
    return known | {"hypothesis": step.hypothesis, "advice": step.details.get("advice")}


def progress(task: str, kind: str, data: dict[str, Any]) -> None:
    if kind != "progress":
        print(f"{time.strftime('%H:%M:%S')} {task}: {kind} {data.get('step', '')}", file=sys.stderr, flush=True)


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    points = {point["step"]: point for point in found["points"]}
    winner = points.get(found["winner"])
    if winner is None or found["verdict"] is None:
        return f"| {found['task']} | no energy: {'; '.join(found['notes'])} | | | | | |"
    fastest = min((points[step] for step in found["finalists"] if step in points), key=lambda point: point["ms"])
    speed = found["verdict"]["speedup"][winner["against"]]["value"]
    ratio = winner["energy"]
    cells = (
        found["task"],
        f"{winner['ms']:.4f}",
        f"{watts(winner):.0f}",
        "is the fastest" if winner is fastest else compared(winner, fastest),
        compared(winner, points.get(origin(found))),
        f"{winner['against']} {speed:.2f}x",
        f"{1 - ratio['value']:.1%} [{1 - ratio['high']:.1%}, {1 - ratio['low']:.1%}]",
    )
    return f"| {' | '.join(cells)} |"


def origin(found: dict[str, Any]) -> int:
    """The first design that the winner came from."""
    parents = {step["step"]: step["parent"] for step in found["steps"]}
    step: int = found["winner"]
    while parents[step]:
        step = parents[step]
    return step


def compared(winner: dict[str, Any], other: dict[str, Any] | None) -> str:
    """Its time, its power and the saving, of a kernel that the winner is held against."""
    if other is None:
        return "not measured"
    if other is winner:
        return "is that itself"
    least, most = (saved(winner["energy"], other["energy"], at) for at in ("low", "high"))
    saving = f"{saved(winner['energy'], other['energy']):.1%} [{least:.1%}, {most:.1%}]"
    return f"{saving}, time {winner['ms'] / other['ms'] - 1:+.1%}, at {watts(other):.0f} W"


def watts(point: dict[str, Any]) -> float:
    """About: energy is a loop's, time a single call's."""
    return 1e3 * float(point["joules"]) / float(point["ms"])


def saved(winner: dict[str, float], other: dict[str, float], at: str = "value") -> float:
    """Share of the other's energy that the winner does not need, at best (`high`) and at worst (`low`)."""
    mine, its = {"value": ("value", "value"), "low": ("high", "low"), "high": ("low", "high")}[at]
    return 1 - winner[mine] / other[its]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, help="tasks of our own suite")
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=280.0, help="about so long for a task: half of it for the search")
    parser.add_argument("--out", type=Path, help="write everything here, as JSON")
    parser.add_argument("--home", type=Path, help="keep the runs here")
    chosen = parser.parse_args()
    paths = {name: next(SUITE.glob(f"level*/{name}.py"), None) for name in chosen.names}
    if unknown := [name for name, path in paths.items() if path is None]:
        parser.error(f"no task of our own suite is called {', '.join(unknown)}")
    found = []
    print("| task | winner, ms | W | than the fastest | than the design it came from | speed | saving against the baseline |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with Pool() as pool, tempfile.TemporaryDirectory(prefix="energy-search-") as scratch:
        for path in paths.values():
            assert path
            task, home = Task.from_file(path).for_target("cuda"), chosen.home or Path(scratch)
            try:
                found.append(searched(pool, task, chosen.candidates, chosen.seconds, home))
            except BadInput as error:
                found.append({"task": path.stem, "winner": None, "verdict": None, "points": [], "notes": [str(error)]})
            print(row(found[-1]), flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
