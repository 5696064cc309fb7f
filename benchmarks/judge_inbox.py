"""The kernels that runs through the inbox made, judged again at full length: each task's first design and its winner.

    python benchmarks/judge_inbox.py [--target cpu|cuda] [--out FILE] [NAME ...]          # prints a Markdown table

All tasks, or the named ones. First designs are kept where they are not the winner, and of the runs on a GPU only. Needs the
machine the target is on; CuTe needs CUTLASS.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batch import ROOT, judged

from kernelpro.records import Candidate, Options

KERNELS = ROOT / "benchmarks" / "results" / "inbox"
SUITE = ROOT / "src" / "kernelpro" / "suites" / "own"


def task_of(winner: Path, name: str) -> Path:
    """Beside the winner where it is not one of our own suite."""
    beside = winner.with_name(winner.name.replace("-winner", "-task"))
    return beside if beside.exists() else next(SUITE.glob(f"level*/*_{name}.py"))


def row(name: str, verdicts: dict[str, dict[str, Any]]) -> str:
    failed = [
        f"{which}: {v['status']}, {v['reason']}" for which, v in verdicts.items() if v["status"] != "passed"
    ]
    if failed or "winner" not in verdicts:
        return f"| {name} | {'; '.join(failed) or 'no verdict'} | | | | |"
    winner = verdicts["winner"]
    ms = {which: v["times"]["candidate"]["value"] for which, v in verdicts.items()}
    first = f"{ms['first']:.4f} | {ms['first'] / ms['winner']:.2f}x" if "first" in ms else " | "
    baselines = {key: time["value"] for key, time in winner["times"].items() if key != "candidate"}
    best = min(baselines, key=lambda key: baselines[key])
    speed = ", ".join(
        f"{key} {s['value']:.2f} [{s['low']:.2f}, {s['high']:.2f}]" for key, s in winner["speedup"].items()
    )
    share = f"{winner['floor_ms'] / ms['winner']:.0%}" if winner["floor_ms"] else ""
    return f"| {name} | {baselines[best]:.4f} {best} | {first} | {ms['winner']:.4f} | {speed} | {share} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    prefix = "h200" if chosen.target == "cuda" else "cpu"
    found: dict[str, dict[str, dict[str, Any]]] = {}
    work = []
    winners = {
        path.stem.removeprefix(f"{prefix}-").removesuffix("-winner"): path
        for path in KERNELS.glob(f"{prefix}-*-winner.py")
    }
    if unknown := set(chosen.names) - set(winners):
        parser.error(f"no such task: {', '.join(sorted(unknown))}; there are {', '.join(sorted(winners))}")
    for name in chosen.names or sorted(winners):
        winner = winners[name]
        kernels = {which: winner.with_name(f"{prefix}-{name}-{which}.py") for which in ("first", "winner")}
        made = [
            Candidate(path.read_text(), f"{name} {which}") for which, path in kernels.items() if path.exists()
        ]
        work.append((task_of(winner, name), made))
    print(
        "| task | best baseline, ms | first design, ms | winner over it | winner, ms | speed-up | of the floor |"
    )
    print("|---|---|---|---|---|---|---|")
    for _, verdict in judged(work, chosen.target, Options(effort="full")):
        name, which = verdict.candidate.split()
        found.setdefault(name, {})[which] = verdict.to_json()
        if which == "winner":
            print(row(name, found[name]), flush=True)
        if chosen.out:
            about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv)}
            chosen.out.write_text(json.dumps(about | {"verdicts": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
