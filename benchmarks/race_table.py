"""A bench of the playbook with a race, as a table and as raw rows.

    python benchmarks/race_table.py BENCH_DIR [--rows ROWS.jsonl]

BENCH_DIR is the `--out` folder of `kernelpro bench SUITE --author playbook --race 1 ...`. A row has a
problem's device seconds by use, its wall seconds, the winner, its speed-up over each baseline, and how every
design did in the race.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from kernelpro.engine.store import RunStore

Row = dict[str, Any]


def read_row(run: Path) -> Row:
    """What is known of one run, finished or not."""
    store = RunStore(run)
    facts, outcome, steps = store.task_facts(), store.outcome(), store.steps()
    row: Row = {
        "problem": run.name.rpartition("-")[0],
        "device_s": {use: round(seconds, 2) for use, seconds in store.device_seconds.items()},
        "wall_s": round(store.wall_seconds, 2),
        "ended": outcome.reason if outcome else "",
        "notes": list(outcome.notes) if outcome else [],
    }
    if facts:
        row |= {"baselines_ms": facts.baselines, "floor_ms": facts.floor_ms, "seed_errors": facts.seed_errors}
        by_code = {step.details.fingerprint: step for step in reversed(steps)}
        row["race"] = [
            {
                "step": by_code[code].number if code in by_code else None,
                "author": by_code[code].author if code in by_code else "",
                "plan": by_code[code].plan if code in by_code else "",
                "status": design.status.value,
                "ratio": design.ratio,
                "reason": design.reason[:300],
                "seconds": design.seconds,
            }
            for code, design in facts.race.items()
        ]
    verdict = outcome.verdict if outcome else None
    judged = [step for step in steps if step.verdict]
    row["judged"] = [
        {"step": s.number, "status": s.verdict.status.value, "reason": s.verdict.reason[:300], "ms": s.ms}
        for s in judged
        if s.verdict
    ]
    if verdict and outcome and outcome.best is not None:
        row |= {
            "winner": next(step.author for step in steps if step.number == outcome.best),
            "plan": next(step.plan for step in steps if step.number == outcome.best),
            "language": verdict.language,
            "ms": verdict.times["candidate"].value,
            "speedup": {name: ratio.to_json() for name, ratio in verdict.speedup.items()},
            "faster": verdict.faster,
            "preparation_s": verdict.measurement.preparation_seconds,
            "judging_s": verdict.measurement.seconds,
        }
    store.close()
    return row


def best_speedup(row: Row) -> tuple[float, float, float] | None:
    """Over the fastest baseline, with its interval."""
    ratios = [(r["value"], r["low"], r["high"]) for r in row.get("speedup", {}).values()]
    return min(ratios, default=None)


def format_table(rows: list[Row]) -> str:
    """Markdown."""
    uses = list(dict.fromkeys(use for row in rows for use in row["device_s"]))
    titles = [
        "problem",
        *(f"{use} s" for use in uses),
        "device s",
        "wall s",
        "raced",
        "winner",
        "language",
        "x fastest",
    ]
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        best = best_speedup(row)
        lines.append(
            [
                row["problem"],
                *(f"{row['device_s'].get(use, 0):.1f}" for use in uses),
                f"{sum(row['device_s'].values()):.1f}",
                f"{row['wall_s']:.1f}",
                str(len(row.get("race", ()))),
                row.get("winner", row["ended"] or "unfinished"),
                row.get("language", ""),
                f"{best[0]:.2f} [{best[1]:.2f}, {best[2]:.2f}]" if best else "",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    rows = [read_row(path.parent) for path in sorted(options.folder.glob("runs/*/run.db"))]
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(format_table(rows))
    finished = [row for row in rows if row["ended"]]
    if finished:
        device = [sum(row["device_s"].values()) for row in finished]
        wall = [row["wall_s"] for row in finished]
        print(
            f"{len(finished)} finished; device seconds: median {statistics.median(device):.1f}, "
            f"sum {sum(device):.0f}; wall seconds: median {statistics.median(wall):.1f}, sum {sum(wall):.0f}"
        )


if __name__ == "__main__":
    main()
