"""Measure the judge's noise: judge each reference as its own candidate.

    python benchmarks/judge_noise.py [--target cpu|cuda] [--out FILE] [TASK ...]

Prints one line per task: the speed-up of identical code with its interval, which should contain 1 and be
narrow, and the judge's own A/A control.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from batch import ROOT, judge_all

from kernelpro.records import Candidate, Options


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks", nargs="*", type=Path, metavar="TASK", help="task files; default: all examples"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures here, as JSON")
    arguments = parser.parse_args()
    folder = ROOT / "examples" / ("gpu" if arguments.target == "cuda" else "cpu")
    tasks = arguments.tasks or sorted(folder.glob("*/task.py"))
    rows = []
    options = Options(
        effort="full", baselines=("eager_tf32",) if arguments.target == "cuda" else ("eager_fp32",)
    )
    work = [
        (path, [Candidate(re.sub(r"\bModel\b", "ModelNew", path.read_text()), "itself")]) for path in tasks
    ]
    for path, verdict in judge_all(work, arguments.target, options):
        if not verdict.times:
            print(f"{path.parent.name:24} {verdict.status.value}: {verdict.reason}")
            continue
        ratio = list(verdict.speedup.values())[-1]
        width = (ratio.high - ratio.low) / ratio.value
        control, burst = verdict.measurement.a_a, verdict.measurement.burst_ms
        ms = verdict.times["candidate"].value
        rows.append(
            {
                "task": path.parent.name,
                "ms": ms,
                "ratio": ratio.to_json(),
                "a_a": control.to_json() if control else None,
                "burst_ms": burst.to_json() if burst else None,
                "own_ms": verdict.measurement.own_ms,
            }
        )
        speedup = f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
        summary = f"width {width:.2%}, contains 1: {ratio.low <= 1 <= ratio.high}"
        interval = f"A/A [{control.low:.4f}, {control.high:.4f}]" if control else "no A/A control"
        print(f"{path.parent.name:24} {ms:8.3f} ms  {speedup}  {summary}  {interval}", flush=True)
    if arguments.out and rows:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "environment": verdict.environment.to_json(),
        }
        arguments.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
