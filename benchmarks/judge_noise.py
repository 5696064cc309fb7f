"""The judge against itself: the reference, judged as its own candidate, must not be faster or slower.

    python benchmarks/judge_noise.py [--target cpu|cuda] [--out FILE] [TASK ...]

Prints, for every task, the interval of the speed-up of identical code (it should hold 1 and be narrow) and the A/A
control that the judge itself makes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from batch import ROOT, judged

from kernelpro.records import Candidate, Options


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", type=Path)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    folder = ROOT / "examples" / ("gpu" if chosen.target == "cuda" else "cpu")
    tasks = chosen.tasks or sorted(folder.glob("*/task.py"))
    rows = []
    options = Options(
        effort="full", baselines=("eager_tf32",) if chosen.target == "cuda" else ("eager_fp32",)
    )
    work = [
        (path, [Candidate(re.sub(r"\bModel\b", "ModelNew", path.read_text()), "itself")]) for path in tasks
    ]
    for path, verdict in judged(work, chosen.target, options):
        if not verdict.times:
            print(f"{path.parent.name:24} {verdict.status.value}: {verdict.reason}")
            continue
        (ratio,) = (
            verdict.speedup.values() if len(verdict.speedup) == 1 else list(verdict.speedup.values())[-1:]
        )
        width = (ratio.high - ratio.low) / ratio.value
        a_a, burst = verdict.measurement["a_a"], verdict.measurement["burst_ms"]
        ms = verdict.times["candidate"].value
        rows.append(
            {
                "task": path.parent.name,
                "ms": ms,
                "ratio": ratio.to_json(),
                "a_a": a_a,
                "burst_ms": burst,
                "own_ms": verdict.measurement["own_ms"],
            }
        )
        shown = f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
        summary = f"width {width:.2%}, holds 1: {ratio.low <= 1 <= ratio.high}"
        control = f"A/A [{a_a['low']:.4f}, {a_a['high']:.4f}]"
        print(f"{path.parent.name:24} {ms:8.3f} ms  {shown}  {summary}  {control}", flush=True)
    if chosen.out and rows:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "environment": verdict.environment,
        }
        chosen.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
