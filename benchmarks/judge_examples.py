"""Every example kernel, judged: correct, how fast against each baseline, how near to the floor.

python benchmarks/judge_examples.py [--target cpu|cuda] [--out FILE] [FOLDER ...]
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    home = ROOT / "examples" / ("gpu" if chosen.target == "cuda" else "cpu")
    folders = chosen.folders or sorted({path.parent for path in home.glob("*/*_*.py")})
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
    for _, verdict in judged(work, chosen.target, Options()):
        rows.append(verdict.to_json())
        show(rows[-1])
        if chosen.out:
            about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv)}
            chosen.out.write_text(json.dumps(about | {"verdicts": rows}, indent=1) + "\n")


def show(v: dict[str, Any]) -> None:
    name = v["candidate"]
    if v["status"] != "passed":
        print(f"{name:45} {v['status']}: {v['reason']}", flush=True)
        return
    times, speedup = v["times"], v["speedup"]
    ms = times["candidate"]["value"]
    ratios = "  ".join(f"{k} {s['value']:.2f} [{s['low']:.2f}, {s['high']:.2f}]" for k, s in speedup.items())
    print(
        f"{name:45} {ms:8.3f} ms  {v['floor_ms'] / ms:4.0%} of floor  error {v['error']:.1e}  {ratios}  {v['faster']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
