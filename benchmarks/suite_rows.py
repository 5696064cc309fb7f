"""Rows of judge_suite.py as Markdown: counts by level, costs, and every problem that did not pass.

A library for judge_suite.py, not a command.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_MAX_REASON = 200


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """The last row of each problem, from all files; truncated lines are left out."""
    rows: dict[str, Row] = {}
    for path in paths:
        if not path.exists():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            rows[row["key"]] = row
    return sorted(rows.values(), key=lambda row: (row["level"], _number(row["problem"]), row["problem"]))


def _number(label: str) -> int:
    digits = label.split()[0].rpartition("/")[2]
    return int(digits) if digits.isdigit() else 0


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def format_tables(rows: Sequence[Row]) -> str:
    """Markdown: a line per level, the mean stages, and the problems that did not pass."""
    if not rows:
        return "no rows"
    statuses = [name for name, _ in Counter(row["status"] for row in rows).most_common()]
    head = ["level", "problems", *statuses, "device s, median", "p90", "total"]
    lines = [head, ["---"] * len(head)]
    for level in [*sorted({row["level"] for row in rows}), None]:
        part = [row for row in rows if level in (None, row["level"])]
        seconds = [row["device_s"] for row in part]
        counts = Counter(row["status"] for row in part)
        lines.append(
            [
                "all" if level is None else str(level),
                str(len(part)),
                *(str(counts[name]) for name in statuses),
                f"{statistics.median(seconds):.1f}",
                f"{percentile(seconds, 0.9):.1f}",
                f"{sum(seconds):.0f}",
            ]
        )
    text = [_markdown(lines), "", *_remarks(rows), "", "| problem | candidate | status | reason |"]
    text.append("|---|---|---|---|")
    for row in rows:
        if row["status"] != "passed":
            reason = " ".join(row["reason"].split())[:_MAX_REASON].replace("|", "\\|")
            text.append(f"| {row['problem']} | {row['candidate']} | {row['status']} | {reason} |")
    return "\n".join(text)


def _remarks(rows: Sequence[Row]) -> list[str]:
    kinds = Counter(row["candidate"] for row in rows)
    wall = sorted(row["wall_s"] for row in rows)
    lines = [
        f"- candidates: {', '.join(f'{count} {name}' for name, count in kinds.most_common())}",
        f"- wall time per problem: median {statistics.median(wall):.1f} s, "
        f"mean {statistics.mean(wall):.1f} s",
    ]
    for title, key in (("preparation", "preparation_s"), ("judging", "seconds")):
        stages: Counter[str] = Counter()
        timed = [row[key] for row in rows if row.get(key)]
        for seconds in timed:
            stages.update(seconds)
        if timed:
            means = ", ".join(f"{name} {total / len(timed):.2f}" for name, total in stages.most_common())
            lines.append(f"- {title}, mean seconds: {means}")
    used = [row["used_gb"] for row in rows if row.get("used_gb")]
    if used:
        lines.append(
            f"- device memory in use: median {statistics.median(used):.1f} GB, most {max(used):.1f} GB"
        )
    faster = Counter(row.get("faster") for row in rows if row["status"] == "passed")
    lines.append(f"- faster than the fastest baseline: {dict(faster)}")
    noted = Counter(note for row in rows for note in row.get("notes", ()))
    lines += [f"- {count} x note: {note[:160]}" for note, count in noted.most_common(8)]
    return lines


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
