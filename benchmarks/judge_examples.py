"""Every example kernel, judged: correct, how fast against each baseline, how near to the floor.

python benchmarks/judge_examples.py [--target cpu|cuda] [--out FILE] [FOLDER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    home = ROOT / "examples" / ("gpu" if chosen.target == "cuda" else "cpu")
    folders = chosen.folders or sorted({path.parent for path in home.glob("*/*_*.py")})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    rows = []
    for folder in folders:
        kernels = sorted(str(path.relative_to(ROOT)) for path in folder.resolve().glob("*_*.py"))
        task = str((folder / "task.py").resolve().relative_to(ROOT))
        command = [sys.executable, "-m", "kernelpro", "judge", task, *kernels, "--target", chosen.target, "--json"]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            rows.append(json.loads(line))
            show(rows[-1])
        if chosen.out:
            about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv)}
            chosen.out.write_text(json.dumps(about | {"verdicts": rows}, indent=1) + "\n")


def show(v: dict[str, object]) -> None:
    name = "/".join(Path(str(v["candidate"])).parts[-2:])
    if v["status"] != "passed":
        print(f"{name:45} {v['status']}: {v['reason']}", flush=True)
        return
    times, speedup = v["times"], v["speedup"]
    assert isinstance(times, dict) and isinstance(speedup, dict) and isinstance(v["floor_ms"], float)
    ms = times["candidate"]["value"]
    ratios = "  ".join(f"{k} {s['value']:.2f} [{s['low']:.2f}, {s['high']:.2f}]" for k, s in speedup.items())
    print(
        f"{name:45} {ms:8.3f} ms  {v['floor_ms'] / ms:4.0%} of floor  error {v['error']:.1e}  {ratios}  {v['faster']}", flush=True
    )


if __name__ == "__main__":
    main()
