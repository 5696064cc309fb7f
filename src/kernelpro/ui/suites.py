"""Results of benches: one row for each problem, with a link to its run if there is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernelpro.report.wording import baseline_name
from kernelpro.suites import scoreboard
from kernelpro.suites.statistics import fast_p
from kernelpro.ui.overview import Overview

_MAX_BYTES = 64 * 2**20


def summarize_benches(benches: dict[str, Path], overview: Overview) -> list[dict[str, Any]]:
    """The name, size and result of each bench, latest first."""
    found = []
    for name, folder in benches.items():
        bench = read_bench(name, folder, overview)
        speedups = [row["speedup"] for row in bench["rows"] if row["scored"]]
        passed = [value for value in speedups if value]
        found.append(
            {key: bench[key] for key in ("name", "suite", "evaluated", "target", "changed")}
            | {
                "problems": len(bench["rows"]),
                "scored": len(speedups),
                "passed": len(passed),
                "fast_1": fast_p(speedups, 1.0),
                "speedups": passed,
            }
        )
    return sorted(found, key=lambda bench: -bench["changed"])


def read_bench(name: str, folder: Path, overview: Overview) -> dict[str, Any]:
    """All rows of a bench: from its scoreboard, and from runs that are not on the scoreboard yet."""
    board = _read_scoreboard(folder / scoreboard.FILE)
    runs = [(name, path.parent) for path in sorted((folder / "runs").glob("*/run.db"))]
    by_id = {row["id"]: row for row in overview.rows(runs)}
    rows = [_board_row(row, name, by_id) for row in (*board.get("rows", ()), *board.get("excluded", ()))]
    shown = {row["run"]["id"] for row in rows if row["run"]}
    rows += [_run_row(row, name) for id, row in by_id.items() if id not in shown and "error" not in row]
    results = folder / "results.jsonl"
    return {
        "name": name,
        "suite": str(board.get("suite", name)),
        "evaluated": str(board.get("evaluated", "")),
        "target": str(board.get("target", "")),
        "machines": list(board.get("machines", ())),
        "summary": board.get("summary", {}),
        "changed": results.stat().st_mtime if results.is_file() else 0.0,
        "rows": rows,
    }


def _read_scoreboard(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the bench has not ended yet
        return {}
    return data if isinstance(data, dict) else {}


def _board_row(row: dict[str, Any], bench: str, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    id = re.sub(r"[^\w.-]+", "-", str(row.get("problem", ""))) + "-1"
    speedup = {base: ratio["value"] for base, ratio in (row.get("speedup") or {}).items()}
    hardest = min((base for base in speedup if base != "best"), key=lambda base: speedup[base], default="")
    status = str(row.get("status", ""))
    return {
        "problem": str(row.get("problem", "")),
        "status": status,
        "scored": status not in ("not_scorable", "not run", "not judged"),
        "reason": str(row.get("reason", ""))[:400],
        "author": str(row.get("author", "")),
        "language": str(row.get("language", "")),
        "ms": row.get("ms"),
        "speedup": speedup.get(hardest),
        "base": baseline_name(hardest),
        "of_floor": row["floor_ms"] / row["ms"] if row.get("ms") and row.get("floor_ms") else None,
        "seconds": row.get("seconds") or 0.0,
        "dollars": (row.get("cost") or {}).get("dollars") or 0.0,
        "run": {"root": bench, "id": id} if id in runs else None,
    }


def _run_row(row: dict[str, Any], bench: str) -> dict[str, Any]:
    """The row of a run that is in progress, or whose bench has not ended."""
    state = row["state"]
    status = ("passed" if row["speedup"] else "no kernel") if state == "finished" else state
    return {
        "problem": re.sub(r"-\d+$", "", row["id"]),
        "status": status,
        "scored": state == "finished",
        "reason": row["reason"],
        "author": row["author"],
        "language": "",
        "ms": row["ms"],
        "speedup": row["speedup"],
        "base": row["base"],
        "of_floor": None,
        "seconds": row["spent"]["wall_seconds"],
        "dollars": row["spent"]["dollars"],
        "run": {"root": bench, "id": row["id"]},
    }
