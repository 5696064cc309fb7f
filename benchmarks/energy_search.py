"""Search for less energy at the same speed: what `--objective energy-at-speed` finds on built-in tasks.

    python benchmarks/energy_search.py [--candidates 3] [--runs-dir DIR] [--out FILE] [NAME ...]
    python benchmarks/energy_search.py --again FILE [--out FILE] [NAME ...]

For each task (NAME, such as 07_gelu) the playbook, without a model, searches for the least energy among
kernels within 2 % of the fastest. The winner and the first design it came from are then measured in
alternation: times of single calls, and five rounds of energy in loops. If the board reached its power limit
or the loops gave no result, they are also measured at the same rate of calls, with idle time
(energy_spaced.py). Speed and energy against the fastest baseline are the run's own.

FILE receives every kernel that was measured. With `--runs-dir`, the same command continues runs that were
stopped. `--again` does not search: it compares the winners of an earlier FILE with their first designs, on
this machine. Needs a GPU with an energy counter. Exit code 0: on at least three tasks a winner that is at
most 2 % slower saved energy, with an interval below 1.

The default tasks are bound by DRAM while costly functions hide behind it (divisions, erf, tanh, exp,
logarithms). Approximate functions take 12 to 52 instructions per element less, and in the planted pairs 16
multiply-adds per element took 18 % of the energy. Matrix products are left out: they run at the board's
power limit, where energy is proportional to time.
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
from energy import EnergyBench  # noqa: E402

from kernelpro.engine import session  # noqa: E402
from kernelpro.lab.energy.counter import NoEnergyCounter, find_counter  # noqa: E402
from kernelpro.lab.energy.updates import UnresolvedEnergy  # noqa: E402
from kernelpro.lab.energy.window import Side  # noqa: E402
from kernelpro.lab.sandbox.builds import Builds  # noqa: E402
from kernelpro.lab.sandbox.launcher import SandboxLauncher  # noqa: E402
from kernelpro.lab.sandbox.outputs import CandidateRejected  # noqa: E402
from kernelpro.pools.local import LocalPool  # noqa: E402
from kernelpro.records import BadInput, Interval, Limits, RunConfig, Step, Task  # noqa: E402
from kernelpro.records.energy import format_ratio  # noqa: E402
from kernelpro.records.events import RunEvent, StepProgress  # noqa: E402

SUITE = ROOT / "src" / "kernelpro" / "suites" / "builtin"
DEFAULT = ("10_softcap_softmax", "07_gelu", "23_focal_loss", "21_distillation_loss")
TOLERANCE = 0.02
_MIN_TASKS = 3
"""Tasks with a saving for exit code 0."""


def search(
    pool: LocalPool, task: Task, candidates: int, languages: tuple[str, ...], runs_dir: Path
) -> dict[str, Any]:
    """Run the search for one task; returns its winner, verdict and all steps."""
    config = RunConfig(
        task,
        "cuda",
        "playbook",
        constants={"seeds": len(languages)},  # the other candidates are moves that answer energy findings
        limits=Limits(candidates, stop_at_floor=0.0),
        concurrency=len(languages),
        tune_points=0,
        compile_seed=False,
        knowledge=False,
        languages=languages,
        finalists=0,  # head_to_head compares the winner with its first design
        objective="energy-at-speed",
        speed_tolerance=TOLERANCE,
    )
    store = session.open_run(session.RunRequest(config, runs_dir, config.target, reuse="always"), pool)
    outcome = asyncio.run(
        session.continue_run(store, pool, lambda event: print_progress(task.name, event), explain=False)
    )
    steps = {step.number: step for step in store.steps()}
    return {
        "task": task.name,
        "winner": outcome.best,
        "verdict": outcome.verdict.to_json() if outcome.verdict else None,
        "points": [point.to_json() | {"plan": steps[point.step].plan} for point in outcome.front],
        "notes": outcome.notes,
        "steps": [
            describe_step(step) | {"source": store.source(step.final_source) if step.final_source else ""}
            for step in steps.values()
        ],
    }


def describe_step(step: Step) -> dict[str, Any]:
    """The parts of a step that FILE records."""
    return {
        "step": step.number,
        "parent": step.parent,
        "state": step.state,
        "ms": step.ms,
        "plan": step.plan,
        "hypothesis": step.hypothesis,
        "diagnostic": step.details.diagnostic,
    }


def print_progress(task: str, event: RunEvent) -> None:
    """Report the progress of a step on stderr."""
    if isinstance(event, StepProgress):
        now = time.strftime("%H:%M:%S")
        print(f"{now} {task}: step {event.step} {event.phase}", file=sys.stderr, flush=True)


def head_to_head(task: Task, result: dict[str, Any]) -> dict[str, Any] | None:
    """Compare the winner with the first design it came from; None if the first design won."""
    sources = {step["step"]: step["source"] for step in result["steps"]}
    if result["winner"] not in sources or (design := first_design(result)) == result["winner"]:
        return None
    launcher = SandboxLauncher()
    builds = Builds(launcher)
    try:
        kernels = EnergyBench(task, "cuda", launcher, builds)
        try:
            winner, lean = kernels.start(sources[result["winner"]]), kernels.start(sources[design])
            try:
                comparison, *sides = kernels.compare_times(winner, lean)
                comparison |= measure_loops(kernels, *sides)
                if "unavailable" in comparison or any(
                    window["power_capped"] > 0.5 for window in comparison["energy"]["windows"]
                ):
                    comparison |= measure_spaced(kernels, *sides)
            finally:
                winner.close()
                lean.close()
        finally:
            kernels.bench.close()
    except (NoEnergyCounter, UnresolvedEnergy, CandidateRejected, torch.OutOfMemoryError) as reason:
        return {"unavailable": str(reason)}
    finally:
        builds.close()
        launcher.close()
    return comparison


def measure_loops(kernels: EnergyBench, winner: Side, lean: Side) -> dict[str, Any]:
    """The energy of both in loops without idle time, or the reason why there is no result."""
    try:
        energy = kernels.compare_energy(find_counter("cuda"), winner, lean, "normal")
    except UnresolvedEnergy as reason:
        return {"unavailable": str(reason)}
    return {"energy": energy.to_json(), "power_limited": energy.is_power_limited}


def measure_spaced(kernels: EnergyBench, winner: Side, lean: Side) -> dict[str, Any]:
    """The energy of both at the same rate of calls, or the reason why there is no result."""
    try:
        return {"spaced": energy_spaced.compare_spaced(find_counter("cuda"), kernels, winner, lean)}
    except UnresolvedEnergy as reason:
        return {"spaced_unavailable": str(reason)}


def is_saving(result: dict[str, Any]) -> bool:
    """Whether the winner saves energy at the speed of its first design, with an interval below 1.

    If the board was at its power limit, the comparison at the same rate of calls decides.
    """
    comparison = result.get("comparison")
    if not comparison or "time_ratio" not in comparison:
        return False
    if "spaced" not in comparison and ("spaced_unavailable" in comparison or comparison["power_limited"]):
        return False
    ratio = (
        comparison["spaced"]["ratio"] if "spaced" in comparison else comparison["energy"]["ratio"]["energy"]
    )
    return bool(ratio["high"] < 1 and comparison["time_ratio"]["value"] <= 1 + TOLERANCE)


def table_row(result: dict[str, Any]) -> str:
    """Format a result as a row of the table."""
    comparison = result.get("comparison")
    if comparison is None or "time_ratio" not in comparison:
        reason = (
            comparison["unavailable"] if comparison else "; ".join(result["notes"]) or "the first design won"
        )
        return f"| {result['task']} | nothing to compare: {reason} | | | | | | |"
    energy = result["verdict"]["energy"] or {"baseline": "", "unavailable": "not measured"}
    speed = result["verdict"]["speedup"][energy["baseline"]]["value"] if energy["baseline"] else 0.0
    cells = (
        result["task"],
        f"{result['verdict']['times']['candidate']['value']:.4f}",
        format_ratio(Interval.from_json(comparison["time_ratio"])),
        *loop_cells(comparison),
        format_saving(comparison["spaced"]["ratio"])
        if "spaced" in comparison
        else comparison.get("spaced_unavailable", ""),
        f"{energy['baseline']}: {speed:.2f}x, {1 - energy['ratio']['energy']['value']:.1%} less"
        if speed
        else energy["unavailable"],
    )
    return f"| {' | '.join(cells)} |"


def loop_cells(comparison: dict[str, Any]) -> tuple[str, str, str]:
    """Time and energy over the first design in loops, and the power of both."""
    if "unavailable" in comparison:
        return "", comparison["unavailable"], ""
    ratio, watts = comparison["energy"]["ratio"], comparison["energy"]["watts"]
    limit = ", at the power limit" if comparison["power_limited"] else ""
    both = f"{watts['candidate']['value']:.0f} / {watts['lean']['value']:.0f}{limit}"
    return f"{ratio['edp']['value'] / ratio['energy']['value']:.3f}", format_saving(ratio["energy"]), both


def format_saving(ratio: dict[str, float]) -> str:
    """The saved share of the energy, with its interval."""
    value, low, high = (1 - ratio[name] for name in ("value", "high", "low"))
    return f"{value:.1%} [{low:.1%}, {high:.1%}]"


def first_design(result: dict[str, Any]) -> int:
    """The step of the first design that the winner came from."""
    parents = {step["step"]: step["parent"] for step in result["steps"]}
    step: int = result["winner"]
    while parents[step]:
        step = parents[step]
    return step


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="built-in tasks, such as 07_gelu")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="no search: compare the winners of this FILE"
    )
    parser.add_argument("--candidates", type=int, default=3, help="for each task")
    parser.add_argument(
        "--language", action="append", choices=("triton", "cuda"), help="repeatable: one first design in each"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all results here, as JSON")
    parser.add_argument("--runs-dir", type=Path, metavar="DIR", help="keep the runs here")
    arguments = parser.parse_args()
    earlier = (
        {result["task"]: result for result in json.loads(arguments.again.read_text(encoding="utf-8"))}
        if arguments.again
        else {}
    )
    paths = {
        name: next(SUITE.glob(f"level*/{name}.py"), None) for name in arguments.names or earlier or DEFAULT
    }
    if unknown := [name for name, path in paths.items() if path is None]:
        parser.error(f"unknown built-in task: {', '.join(unknown)}")
    if arguments.again and (unknown := [name for name in paths if name not in earlier]):
        parser.error(f"{arguments.again} has no result for {', '.join(unknown)}")
    results: list[dict[str, Any]] = []
    columns = ["task", "winner, ms", "time over first design", "in loops", "energy saved", "W"]
    columns += ["saved at the same rate", "over the baseline"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="energy-search-") as scratch, LocalPool() as pool:
        for path in paths.values():
            assert path
            task, runs_dir = Task.from_file(path).for_target("cuda"), arguments.runs_dir or Path(scratch)
            started = time.monotonic()
            try:
                languages = tuple(arguments.language or ["triton"])
                result = earlier.get(task.name) or search(
                    pool, task, arguments.candidates, languages, runs_dir
                )
                result["comparison"] = head_to_head(task, result)
            except BadInput as error:
                result = {
                    "task": path.stem,
                    "winner": None,
                    "verdict": None,
                    "points": [],
                    "notes": [str(error)],
                }
            print(table_row(result), flush=True)
            results.append(result | {"seconds": round(time.monotonic() - started, 1)})
            if arguments.out:
                arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    savings = sum(map(is_saving, results))
    print(f"\n{savings} of {len(results)} tasks: a winner at most {TOLERANCE:.0%} slower saves energy")
    return 0 if savings >= _MIN_TASKS else 1


if __name__ == "__main__":
    sys.exit(main())
