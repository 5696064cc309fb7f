"""Searching for less energy at the same speed: what `--objective energy-at-speed` finds on tasks of our own suite.

    python benchmarks/energy_search.py [--out FILE] [--candidates 3] [--language triton] [--home DIR] [NAME ...]     # NAME: 07_gelu
    python benchmarks/energy_search.py --again FILE [--out FILE] [NAME ...]

For each task a run of the playbook, without a model, that looks for the least energy among kernels within 2 % of the fastest. Then
the winner and the design it came from (what the playbook writes before anything is said of energy) are measured in turn, head to
head: times of single calls, and five rounds of energy in loops, so that one sees both the saving and whether speeds match; where
the board was at its limit, or loops told nothing, also at the same rate of calls, with rests (energy_spaced.py). The speed and
energy against the fastest baseline are the run's own. FILE gets every kernel that was measured. Needs a GPU whose joules can be
counted. With DIR, runs are kept there, and the same command goes on where it was killed. `--again` searches for nothing: the
winners of an earlier FILE are held against their designs once more, on this machine. Exit code 0: on at least three tasks energy
was saved beyond doubt, by a winner that is at most 2 % slower.

The tasks are such whose time is DRAM's while costly functions hide behind it (divisions, erf, tanh, exp and logarithms): in machine
code quick forms take 12 to 52 instructions an element less, and of the planted pairs we know that 16 multiply-adds an element are
18 % of the energy. Products are left out: they are expected at the board's power limit, where energy is time.
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

import energy_spaced  # noqa: E402
import torch  # noqa: E402
from energy import Table  # noqa: E402

from kernelpro.engine import session  # noqa: E402
from kernelpro.lab.energy.counter import NoCounter, find  # noqa: E402
from kernelpro.lab.energy.track import Unresolved  # noqa: E402
from kernelpro.lab.energy.window import Side  # noqa: E402
from kernelpro.lab.sandbox.answers import CandidateRejected  # noqa: E402
from kernelpro.lab.sandbox.builds import Builds  # noqa: E402
from kernelpro.lab.sandbox.cell import SandboxLauncher  # noqa: E402
from kernelpro.pools.local import Pool  # noqa: E402
from kernelpro.records import BadInput, Interval, Limits, RunConfig, Step, Task  # noqa: E402

SUITE = ROOT / "src" / "kernelpro" / "suites" / "own"
DEFAULT = ("10_softcap_softmax", "07_gelu", "23_focal_loss", "21_distillation_loss")
TOLERANCE = 0.02
_FEWEST = 3


def searched(
    pool: Pool, task: Task, candidates: int, languages: tuple[str, ...], home: Path
) -> dict[str, Any]:
    config = RunConfig(
        task,
        "cuda",
        "playbook",
        constants={"seeds": len(languages)},  # the other candidates answer what is said of their energy
        limits=Limits(candidates, stop_at_floor=0.0),
        concurrency=len(languages),
        tune_points=0,
        compile_seed=False,
        knowledge=False,
        languages=languages,
        finalists=0,  # the winner is held against its design below
        objective="energy-at-speed",
        speed_tolerance=TOLERANCE,
    )
    store = session.store_for(home, config, task.name)
    outcome = asyncio.run(
        session.work(store, pool, lambda kind, data: progress(task.name, kind, data), explain=False)
    )
    steps = {step.number: step for step in store.steps()}
    return {
        "task": task.name,
        "winner": outcome.best,
        "verdict": outcome.verdict.to_json() if outcome.verdict else None,
        "points": [point.to_json() | {"plan": steps[point.step].plan} for point in outcome.front],
        "notes": outcome.notes,
        "steps": [
            told(step) | {"source": store.source(step.final_source) if step.final_source else ""}
            for step in steps.values()
        ],
    }


def told(step: Step) -> dict[str, Any]:
    known = {
        "step": step.number,
        "parent": step.parent,
        "state": step.state,
        "ms": step.ms,
        "plan": step.plan,
    }
    return known | {"hypothesis": step.hypothesis, "advice": step.details.get("advice")}


def progress(task: str, kind: str, data: dict[str, Any]) -> None:
    if kind != "progress":
        print(
            f"{time.strftime('%H:%M:%S')} {task}: {kind} {data.get('step', '')}", file=sys.stderr, flush=True
        )


def head_to_head(task: Task, found: dict[str, Any]) -> dict[str, Any] | None:
    """The winner over the design it came from, measured in turn; None where that is the winner."""
    sources = {step["step"]: step["source"] for step in found["steps"]}
    if found["winner"] not in sources or (first := origin(found)) == found["winner"]:
        return None
    nursery = SandboxLauncher()
    builds = Builds(nursery)
    try:
        table = Table(task, "cuda", nursery, builds)
        try:
            one, other = table.seat(sources[found["winner"]]), table.seat(sources[first])
            try:
                duel, *sides = table.timed(one, other)
                duel |= looped(table, *sides)
                if "refused" in duel or any(window["capped"] > 0.5 for window in duel["energy"]["windows"]):
                    duel |= spaced(table, *sides)
            finally:
                one.close()
                other.close()
        finally:
            table.bench.close()
    except (NoCounter, Unresolved, CandidateRejected, torch.OutOfMemoryError) as reason:
        return {"refused": str(reason)}
    finally:
        builds.close()
        nursery.close()
    return duel


def looped(table: Table, one: Side, other: Side) -> dict[str, Any]:
    """Their energy in loops without rests, or why there is none."""
    try:
        energy = table.energy(find("cuda"), one, other, "normal")
    except Unresolved as reason:
        return {"refused": str(reason)}
    return {"energy": energy.to_json(), "at_the_limit": energy.at_the_limit}


def spaced(table: Table, one: Side, other: Side) -> dict[str, Any]:
    """Their energy at the same rate of calls, or why there is none."""
    try:
        return {"spaced": energy_spaced.compared(find("cuda"), table, one, other)}
    except Unresolved as reason:
        return {"not_spaced": str(reason)}


def is_saving(found: dict[str, Any]) -> bool:
    """Beyond doubt, and at a matched speed: where the board was at its limit, at the same rate of calls below it."""
    duel = found.get("duel")
    if not duel or "time_ratio" not in duel:
        return False
    if "spaced" not in duel and ("not_spaced" in duel or duel["at_the_limit"]):
        return False
    ratio = duel["spaced"]["ratio"] if "spaced" in duel else duel["energy"]["ratio"]["energy"]
    return bool(ratio["high"] < 1 and duel["time_ratio"]["value"] <= 1 + TOLERANCE)


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    duel = found.get("duel")
    if duel is None or "time_ratio" not in duel:
        why = duel["refused"] if duel else "; ".join(found["notes"]) or "the first design won"
        return f"| {found['task']} | nothing to compare: {why} | | | | | | |"
    energy = found["verdict"]["energy"] or {"against": "", "refused": "not measured"}
    speed = found["verdict"]["speedup"][energy["against"]]["value"] if energy["against"] else 0.0
    cells = (
        found["task"],
        f"{found['verdict']['times']['candidate']['value']:.4f}",
        shown(duel["time_ratio"]),
        *in_loops(duel),
        saved(duel["spaced"]["ratio"]) if "spaced" in duel else duel.get("not_spaced", ""),
        f"{energy['against']}: {speed:.2f}x, {1 - energy['ratio']['energy']['value']:.1%} less"
        if speed
        else energy["refused"],
    )
    return f"| {' | '.join(cells)} |"


def in_loops(duel: dict[str, Any]) -> tuple[str, str, str]:
    """Time and energy over the design, and watts of both."""
    if "refused" in duel:
        return "", duel["refused"], ""
    ratio, watts = duel["energy"]["ratio"], duel["energy"]["watts"]
    limit = ", at the board's limit" if duel["at_the_limit"] else ""
    both = f"{watts['candidate']['value']:.0f} / {watts['lean']['value']:.0f}{limit}"
    return f"{ratio['edp']['value'] / ratio['energy']['value']:.3f}", saved(ratio["energy"]), both


def saved(ratio: dict[str, float]) -> str:
    value, least, most = (1 - ratio[name] for name in ("value", "high", "low"))
    return f"{value:.1%} [{least:.1%}, {most:.1%}]"


def shown(interval: dict[str, float]) -> str:
    found = Interval.from_json(interval)
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def origin(found: dict[str, Any]) -> int:
    """The first design that the winner came from."""
    parents = {step["step"]: step["parent"] for step in found["steps"]}
    step: int = found["winner"]
    while parents[step]:
        step = parents[step]
    return step


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="tasks of our own suite")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="no search: the winners of this FILE against their designs"
    )
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument(
        "--language", action="append", choices=("triton", "cuda"), help="several: one first design in each"
    )
    parser.add_argument("--out", type=Path, help="write everything here, as JSON")
    parser.add_argument("--home", type=Path, help="keep the runs here")
    chosen = parser.parse_args()
    earlier = (
        {result["task"]: result for result in json.loads(chosen.again.read_text(encoding="utf-8"))}
        if chosen.again
        else {}
    )
    paths = {name: next(SUITE.glob(f"level*/{name}.py"), None) for name in chosen.names or earlier or DEFAULT}
    if unknown := [name for name, path in paths.items() if path is None]:
        parser.error(f"no task of our own suite is called {', '.join(unknown)}")
    if chosen.again and (unknown := [name for name in paths if name not in earlier]):
        parser.error(f"{chosen.again} has nothing of {', '.join(unknown)}")
    found: list[dict[str, Any]] = []
    print(
        "| task | winner, ms | time, over its design | in loops | energy saved | W | at the same rate | against the baseline |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="energy-search-") as scratch, Pool() as pool:
        for path in paths.values():
            assert path
            task, home = Task.from_file(path).for_target("cuda"), chosen.home or Path(scratch)
            begun = time.monotonic()
            try:
                languages = tuple(chosen.language or ["triton"])
                result = earlier.get(task.name) or searched(pool, task, chosen.candidates, languages, home)
                result["duel"] = head_to_head(task, result)
            except BadInput as error:
                result = {
                    "task": path.stem,
                    "winner": None,
                    "verdict": None,
                    "points": [],
                    "notes": [str(error)],
                }
            print(row(result), flush=True)
            found.append(result | {"seconds": round(time.monotonic() - begun, 1)})
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    saved = sum(map(is_saving, found))
    print(
        f"\n{saved} of {len(found)} tasks: energy saved beyond doubt by a winner that is at most {TOLERANCE:.0%} slower"
    )
    return 0 if saved >= _FEWEST else 1


if __name__ == "__main__":
    sys.exit(main())
