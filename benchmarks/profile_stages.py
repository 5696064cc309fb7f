"""What two stages save: a profile in two stages against one that collects everything, on the same kernels.

    python benchmarks/profile_stages.py [--out FILE] [CANDIDATE ...]

Both sides in one run, on a warm worker, in an order that changes from kernel to kernel: time, timeline and machine code,
then ncu. "Two stages" takes the timeline from CUPTI and the counters of the diagnostics that the class selects; "everything"
takes it from nsys (where that can make a report; else from CUPTI, and the table says so) and the counters of all diagnostics,
with stalls by line. Neither profiles a baseline; setting up the task and building the candidate are outside the clock. Candidates
default to a memory-bound, a compute-bound and a launch-bound one of tests/defects/gpu. Needs a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
CORPUS = ROOT / "tests" / "defects"

from kernelpro.diagnose.diagnostics import registry  # noqa: E402
from kernelpro.engine.profiling import ProfileSpec, profile  # noqa: E402
from kernelpro.pools import local  # noqa: E402
from kernelpro.records import Candidate, Diagnosis, Job, Profile, Result, Task  # noqa: E402

DEFAULT = ("d_uncoalesced_access", "d_slow_mma_family", "d_launch_overhead")
SIDES = {"two stages": ("cupti", False), "everything": ("nsys", True)}
"""Tracer, and whether all counters are collected."""


def task_of(path: Path) -> Task:
    """The task that the first line of a candidate of the corpus names."""
    fields = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").split(" | ")
    return Task.from_file(
        CORPUS / "tasks" / f"{dict(field.partition(': ')[::2] for field in fields)['task']}.py"
    )


def measure(pool: local.LocalPool, path: Path, side: str) -> tuple[float, Profile, Diagnosis]:
    tracer, everything = SIDES[side]
    request = ProfileSpec(
        task_of(path), Candidate.from_file(path), "cuda", tracer=tracer, all_counters=everything
    )

    async def ask(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    begun = time.monotonic()
    found, diagnosis = asyncio.run(profile(ask, request, registry()))
    return time.monotonic() - begun, found, diagnosis


def compare(pool: local.LocalPool, path: Path, turn: int) -> dict[str, Any]:
    """One kernel on both sides."""
    job = Job("warm", "profile", task_of(path), Candidate.from_file(path), "cuda")
    if error := pool.run(job).error:  # sets the task up and builds the candidate
        sys.exit(f"{path.name}: {error}")
    row: dict[str, Any] = {"candidate": path.stem}
    for side in list(SIDES) if turn % 2 == 0 else list(SIDES)[::-1]:
        seconds, found, diagnosis = measure(pool, path, side)
        row["class"] = diagnosis.bound
        row[side] = {
            "seconds": round(seconds, 2),
            "spent": found.seconds,
            "timeline": found.timeline.source if found.timeline else None,
            "counters": len({name for kernel in found.kernels for name in kernel.metrics}),
            "findings": [f"{one.diagnostic} {one.severity}" for one in diagnosis.findings],
            "skipped": [note.to_json() for note in found.skipped],
        }
    few, all_of = row["two stages"], row["everything"]
    row["ratio"] = round(all_of["seconds"] / few["seconds"], 2)
    row["same first"] = few["findings"][:1] == all_of["findings"][:1]
    row["same findings"] = few["findings"] == all_of["findings"]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| candidate | class | two stages, s | everything, s | ratio | counters | timeline | same first | same findings |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        few, all_of = row["two stages"], row["everything"]
        cells = [row["candidate"], row["class"], few["seconds"], all_of["seconds"], row["ratio"]]
        cells += [
            f"{side[0]} / {side[1]}" for side in ((few[key], all_of[key]) for key in ("counters", "timeline"))
        ]
        print("| " + " | ".join(map(str, [*cells, row["same first"], row["same findings"]])) + " |")
    total = {side: sum(row[side]["seconds"] for row in rows) for side in SIDES}
    print(f"all together: {total['two stages']:.1f} s against {total['everything']:.1f} s", end="")
    print(f", {total['everything'] / total['two stages']:.2f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "candidates", nargs="*", type=Path, help="files with a header as in tests/defects/gpu"
    )
    parser.add_argument("--out", type=Path, help="write all figures here, as JSON")
    chosen = parser.parse_args()
    paths = chosen.candidates or [CORPUS / "gpu" / f"{name}.py" for name in DEFAULT]
    with local.LocalPool() as pool:
        rows = []
        for turn, path in enumerate(paths):
            rows.append(compare(pool, path, turn))
            print(f"{path.stem}: {rows[-1]['ratio']} times", file=sys.stderr, flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows)


if __name__ == "__main__":
    main()
