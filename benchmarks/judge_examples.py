"""Judge every example kernel.

    python benchmarks/judge_examples.py [--target cpu|cuda] [--out FILE] [FOLDER ...]

Prints one line per kernel: time, share of the floor, error, speed-up over each baseline with its 95 %
interval, and whether the kernel is faster than the fastest baseline.
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="default: all examples of the target"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the verdicts here, as JSON")
    arguments = parser.parse_args()
    examples = ROOT / "examples" / ("gpu" if arguments.target == "cuda" else "cpu")
    folders = arguments.folders or sorted({path.parent for path in examples.glob("*/*_*.py")})
    work = [
        (
            folder / "task.py",
            [
                Candidate(path.read_text(), f"{folder.name}/{path.name}")
                for path in sorted(folder.glob("*_*.py"))
            ],
        )
        for folder in folders
    ]
    rows = []
    for _, verdict in judge_all(work, arguments.target, Options()):
        rows.append(verdict.to_json())
        print_verdict(rows[-1])
        if arguments.out:
            about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv)}
            arguments.out.write_text(json.dumps(about | {"verdicts": rows}, indent=1) + "\n")


def print_verdict(verdict: dict[str, Any]) -> None:
    """Print the line of one kernel."""
    name = verdict["candidate"]
    if verdict["status"] != "passed":
        print(f"{name:45} {verdict['status']}: {verdict['reason']}", flush=True)
        return
    ms = verdict["times"]["candidate"]["value"]
    speedups = "  ".join(
        f"{baseline} {ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        for baseline, ratio in verdict["speedup"].items()
    )
    floor = f"{verdict['floor_ms'] / ms:4.0%} of floor"
    print(
        f"{name:45} {ms:8.3f} ms  {floor}  error {verdict['error']:.1e}  {speedups}  {verdict['faster']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
