"""Measure what profiling in two stages saves over collecting everything, on the same kernels.

    python benchmarks/profile_stages.py [--out FILE] [CANDIDATE ...]

Both ways run on a worker with a prepared task, in an order that alternates between kernels: time, timeline
and machine code, then ncu. "Two stages" takes the timeline from CUPTI and the counters of the diagnostics
that the kernel's class selects. "Everything" takes the timeline from nsys (from CUPTI if nsys cannot write
a report; the table shows which) and the counters of all diagnostics, with stalls by line. Neither profiles
a baseline; preparing the task and building the candidate are not timed.

Candidates default to a memory-bound, a compute-bound and a launch-bound kernel of tests/defects/gpu. Prints
a Markdown table. Needs a GPU.
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
"""The tracer of each side, and whether it collects all counters."""


def load_task(path: Path) -> Task:
    """The task that the first line of a candidate names."""
    fields = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").split(" | ")
    return Task.from_file(
        CORPUS / "tasks" / f"{dict(field.partition(': ')[::2] for field in fields)['task']}.py"
    )


def measure(pool: local.LocalPool, path: Path, side: str) -> tuple[float, Profile, Diagnosis]:
    """Profile a kernel; returns the seconds, the profile and the diagnosis."""
    tracer, everything = SIDES[side]
    spec = ProfileSpec(
        load_task(path), Candidate.from_file(path), "cuda", tracer=tracer, all_counters=everything
    )

    async def run_job(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    started = time.monotonic()
    result, diagnosis = asyncio.run(profile(run_job, spec, registry().values()))
    return time.monotonic() - started, result, diagnosis


def warm(pool: local.LocalPool, path: Path) -> None:
    """Prepare the task and build the candidate."""
    job = Job("warm", "profile", load_task(path), Candidate.from_file(path), "cuda")
    if error := pool.run(job).error:
        sys.exit(f"{path.name}: {error}")


def compare(pool: local.LocalPool, path: Path, turn: int) -> dict[str, Any]:
    """Profile one kernel in both ways."""
    warm(pool, path)
    row: dict[str, Any] = {"candidate": path.stem}
    for side in list(SIDES) if turn % 2 == 0 else list(SIDES)[::-1]:
        seconds, result, diagnosis = measure(pool, path, side)
        row["class"] = diagnosis.bound
        row[side] = {
            "seconds": round(seconds, 2),
            "spent": result.seconds,
            "timeline": result.timeline.source if result.timeline else None,
            "counters": len({name for kernel in result.kernels for name in kernel.metrics}),
            "findings": [f"{finding.diagnostic} {finding.severity}" for finding in diagnosis.findings],
            "skipped": [note.to_json() for note in result.skipped],
        }
    selected, everything = row["two stages"], row["everything"]
    row["ratio"] = round(everything["seconds"] / selected["seconds"], 2)
    row["same first"] = selected["findings"][:1] == everything["findings"][:1]
    row["same findings"] = selected["findings"] == everything["findings"]
    return row


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a Markdown table and the totals."""
    columns = ["candidate", "class", "two stages, s", "everything, s", "ratio", "counters", "timeline"]
    columns += ["same first finding", "same findings"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        selected, everything = row["two stages"], row["everything"]
        cells = [row["candidate"], row["class"], selected["seconds"], everything["seconds"], row["ratio"]]
        cells += [f"{selected[key]} / {everything[key]}" for key in ("counters", "timeline")]
        print("| " + " | ".join(map(str, [*cells, row["same first"], row["same findings"]])) + " |")
    total = {side: sum(row[side]["seconds"] for row in rows) for side in SIDES}
    print(f"total: {total['two stages']:.1f} s against {total['everything']:.1f} s", end="")
    print(f", {total['everything'] / total['two stages']:.2f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "candidates", nargs="*", type=Path, metavar="CANDIDATE", help="files like those in tests/defects/gpu"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures here, as JSON")
    parser.add_argument("--two-stages", action="store_true", help="time profiling in two stages only")
    arguments = parser.parse_args()
    paths = arguments.candidates or [CORPUS / "gpu" / f"{name}.py" for name in DEFAULT]
    with local.LocalPool() as pool:
        rows = []
        for turn, path in enumerate(paths):
            if arguments.two_stages:
                warm(pool, path)
                seconds, result, diagnosis = measure(pool, path, "two stages")
                account = sum(part.ms for part in diagnosis.account) / result.time_ms
                print(
                    f"{path.stem}: {seconds:.1f} s, class {diagnosis.bound}, "
                    f"account {account:.1%} of the time, {result.seconds}",
                    flush=True,
                )
                continue
            rows.append(compare(pool, path, turn))
            print(f"{path.stem}: {rows[-1]['ratio']} times", file=sys.stderr, flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if rows:
        print_table(rows)


if __name__ == "__main__":
    main()
