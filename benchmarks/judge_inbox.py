"""Judge the kernels of the recorded inbox runs again, with `--full`: each task's first design and its
winner.

    python benchmarks/judge_inbox.py [--target cpu|cuda] [--out FILE] [NAME ...]

Prints a Markdown table with one row per task; NAME selects tasks. First designs are recorded only for GPU
runs and only where they are not the winner. Needs a machine with the target's hardware; CuTe kernels need
CUTLASS.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batch import ROOT, judge_all

from kernelpro.records import Candidate, Options

KERNELS = ROOT / "benchmarks" / "results" / "inbox"
SUITE = ROOT / "src" / "kernelpro" / "suites" / "builtin"


def task_path(winner: Path, name: str) -> Path:
    """The task of a winner: the file beside it if there is one, else the built-in task of this name."""
    recorded = winner.with_name(winner.name.replace("-winner", "-task"))
    return recorded if recorded.exists() else next(SUITE.glob(f"level*/*_{name}.py"))


def table_row(name: str, verdicts: dict[str, dict[str, Any]]) -> str:
    """Format the verdicts of one task as a row of the table."""
    failed = [
        f"{role}: {verdict['status']}, {verdict['reason']}"
        for role, verdict in verdicts.items()
        if verdict["status"] != "passed"
    ]
    if failed or "winner" not in verdicts:
        return f"| {name} | {'; '.join(failed) or 'no verdict'} | | | | | |"
    winner = verdicts["winner"]
    ms = {role: verdict["times"]["candidate"]["value"] for role, verdict in verdicts.items()}
    first = f"{ms['first']:.4f} | {ms['first'] / ms['winner']:.2f}x" if "first" in ms else " | "
    baselines = {key: time["value"] for key, time in winner["times"].items() if key != "candidate"}
    best = min(baselines, key=lambda key: baselines[key])
    speedups = ", ".join(
        f"{baseline} {ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        for baseline, ratio in winner["speedup"].items()
    )
    share = f"{winner['floor_ms'] / ms['winner']:.0%}" if winner["floor_ms"] else ""
    return f"| {name} | {baselines[best]:.4f} {best} | {first} | {ms['winner']:.4f} | {speedups} | {share} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the verdicts here, as JSON")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all recorded tasks of the target")
    arguments = parser.parse_args()
    prefix = "h200" if arguments.target == "cuda" else "cpu"
    verdicts: dict[str, dict[str, dict[str, Any]]] = {}
    work = []
    winners = {
        path.stem.removeprefix(f"{prefix}-").removesuffix("-winner"): path
        for path in KERNELS.glob(f"{prefix}-*-winner.py")
    }
    if unknown := set(arguments.names) - set(winners):
        parser.error(f"unknown task {', '.join(sorted(unknown))}: choose from {', '.join(sorted(winners))}")
    for name in arguments.names or sorted(winners):
        winner = winners[name]
        kernels = {role: winner.with_name(f"{prefix}-{name}-{role}.py") for role in ("first", "winner")}
        candidates = [
            Candidate(path.read_text(), f"{name} {role}") for role, path in kernels.items() if path.exists()
        ]
        work.append((task_path(winner, name), candidates))
    columns = (
        "task",
        "best baseline, ms",
        "first design, ms",
        "winner over it",
        "winner, ms",
        "speed-up",
        "of floor",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for _, verdict in judge_all(work, arguments.target, Options(effort="full")):
        name, role = verdict.candidate.split()
        verdicts.setdefault(name, {})[role] = verdict.to_json()
        if role == "winner":
            print(table_row(name, verdicts[name]), flush=True)
        if arguments.out:
            about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv)}
            arguments.out.write_text(
                json.dumps(about | {"verdicts": verdicts}, indent=1) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
