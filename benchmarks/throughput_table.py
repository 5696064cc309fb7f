"""Summarize measured calls: candidates per hour, and seconds by stage.

A library for judge_throughput.py, not a command.
"""

from __future__ import annotations

import itertools
from typing import Any

from kernelbench_evaluation import Call

COLUMNS = ("kernelpro_runtime", "kernelpro", "kernelbench")
"""In the order of running: a broken judge shows before the slow column has run."""
TITLES = {
    "kernelbench": "KernelBench",
    "kernelpro": "KernelPro, same files",
    "kernelpro_runtime": "KernelPro, runtime.cuda",
}
LANGUAGES = ("cuda", "triton")


def split_wall_time(call: Call) -> list[float]:
    """Split the wall time of a call over its candidates: their own stages, and an equal part of the rest.

    Stages that ran in parallel and add up to more than the wall time are scaled down to it.
    """
    stages = [sum(candidate["seconds"].values()) for candidate in call["candidates"]]
    rest = call["wall_s"] - sum(stages)
    if rest < 0:
        return [seconds * call["wall_s"] / sum(stages) for seconds in stages]
    return [seconds + rest / len(stages) for seconds in stages]


def summarize(calls: list[Call]) -> dict[str, Any]:
    """Figures by column and language (and `all`).

    Evaluations that ran beside others count as candidates, but not for seconds, rate and stages.
    """
    summary: dict[str, Any] = {}
    for column in COLUMNS:
        column_calls = [call for call in calls if call["column"] == column]
        if not column_calls:
            continue
        summary[column] = {}
        for group in (*LANGUAGES, "all"):
            members = [
                (candidate, seconds, call.get("at_once", 1))
                for call in column_calls
                for candidate, seconds in zip(call["candidates"], split_wall_time(call), strict=True)
                if group in (candidate["language"], "all")
            ]
            pairs = [(candidate, seconds) for candidate, seconds, at_once in members if at_once == 1]
            beside = [seconds for _, seconds, at_once in members if at_once > 1]
            total = sum(seconds for _, seconds in pairs)
            stages: dict[str, float] = {}
            for candidate, _ in pairs:
                for stage, seconds in candidate["seconds"].items():
                    stages[stage] = stages.get(stage, 0.0) + seconds
            summary[column][group] = {
                "candidates": len(members),
                "passed": sum(candidate["status"] == "passed" for candidate, *_ in members),
                "timed": len(pairs),
                "seconds": total,
                "beside_others_s": sum(beside) / len(beside) if beside else None,
                "per_hour": 3600 * len(pairs) / total if total else None,
                "stages": {stage: seconds / len(pairs) for stage, seconds in stages.items()},
            }
        if column != "kernelbench":
            outside = [
                call["wall_s"] - sum(sum(candidate["seconds"].values()) for candidate in call["candidates"])
                for call in column_calls
            ]
            arrivals = [call["verdicts_after_s"] for call in column_calls]
            later = [b - a for times in arrivals for a, b in itertools.pairwise(times)]
            summary[column]["calls"] = {
                "calls": len(column_calls),
                "outside_stages_s": sum(outside) / len(outside),
                "first_verdict_s": sum(times[0] for times in arrivals) / len(arrivals),
                "later_verdict_s": sum(later) / len(later) if later else None,
            }
    for column, groups in summary.items():
        for group in (*LANGUAGES, "all"):
            rate = groups[group]["per_hour"]
            kernelbench = summary.get("kernelbench", {}).get(group, {}).get("per_hour")
            groups[group]["ratio"] = (
                rate / kernelbench if rate and kernelbench and column != "kernelbench" else None
            )
    return summary


def format_table(summary: dict[str, Any]) -> str:
    """Format a summary as text."""
    order = [column for column in ("kernelbench", "kernelpro", "kernelpro_runtime") if column in summary]
    if not order:
        return "\nno task is finished in all columns yet"
    lines = [
        "",
        "Candidates per hour (passed of judged)",
        f"{'':14}" + "".join(f"{TITLES[c]:>26}" for c in order),
    ]
    for group in (*LANGUAGES, "all"):
        cells = [summary[c][group] for c in order]
        texts = [
            f"{cell['per_hour']:.0f} ({cell['passed']}/{cell['candidates']})" if cell["per_hour"] else "-"
            for cell in cells
        ]
        lines.append(f"{group:14}" + "".join(f"{t:>26}" for t in texts))
    if "kernelbench" in summary and len(order) > 1:
        lines += ["", "Ratio to KernelBench"]
        for group in (*LANGUAGES, "all"):
            ratios = [summary[c][group]["ratio"] for c in order]
            lines.append(f"{group:14}" + "".join(f"{r:>25.1f}x" if r else f"{'':26}" for r in ratios))
    for column in order:
        groups = summary[column]
        stages = sorted(groups["all"]["stages"], key=lambda stage: -groups["all"]["stages"][stage])
        lines += [
            "",
            f"Seconds per candidate by stage: {TITLES[column]}",
            f"{'stage':24}" + "".join(f"{g:>10}" for g in LANGUAGES),
        ]
        for stage in stages:
            lines.append(
                f"{stage:24}" + "".join(f"{groups[g]['stages'].get(stage, 0.0):>10.2f}" for g in LANGUAGES)
            )
        totals = {g: groups[g]["seconds"] / (groups[g]["timed"] or 1) for g in LANGUAGES}
        outside = {g: totals[g] - sum(groups[g]["stages"].values()) for g in LANGUAGES}
        lines.append(f"{'outside stages':24}" + "".join(f"{outside[g]:>10.2f}" for g in LANGUAGES))
        lines.append(f"{'total':24}" + "".join(f"{totals[g]:>10.2f}" for g in LANGUAGES))
        if mean := groups["all"]["beside_others_s"]:
            alone, count = groups["all"]["timed"], groups["all"]["candidates"]
            lines.append(f"(from {alone} that ran alone; the other {count - alone} took {mean:.1f} s)")
        if any(seconds < -0.005 for seconds in outside.values()):
            lines.append("(below zero: stages of several candidates ran in parallel)")
        if calls := groups.get("calls"):
            later = calls["later_verdict_s"]
            lines.append(
                f"{calls['calls']} calls; first verdict after {calls['first_verdict_s']:.2f} s"
                + (f", each later one {later:.2f} s after the previous" if later is not None else "")
                + f"; {calls['outside_stages_s']:.2f} s per call outside stages"
            )
    return "\n".join(lines)
