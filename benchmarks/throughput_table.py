"""Candidates an hour and where the seconds go, from measured calls."""

from __future__ import annotations

import itertools
from typing import Any

from kernelbench_evaluation import Call

COLUMNS = ("kernelpro_runtime", "kernelpro", "kernelbench")
"""In the order of running: a broken judge shows before the long column has run."""
TITLES = {
    "kernelbench": "KernelBench",
    "kernelpro": "KernelPro, same files",
    "kernelpro_runtime": "KernelPro, runtime.cuda",
}
LANGUAGES = ("cuda", "triton")


def shares(call: Call) -> list[float]:
    """The wall time of a call split over its candidates: own stages, plus an equal part of what is in no stage.

    Where stages ran side by side and so add up to more than the wall time, they are scaled down to it.
    """
    own = [sum(c["seconds"].values()) for c in call["candidates"]]
    rest = call["wall_s"] - sum(own)
    if rest < 0:
        return [o * call["wall_s"] / sum(own) for o in own]
    return [o + rest / len(own) for o in own]


def summarise(calls: list[Call]) -> dict[str, Any]:
    """Column -> language (and `all`) -> candidates, passed, seconds, per_hour, ratio, mean seconds a candidate by stage."""
    summary: dict[str, Any] = {}
    for column in COLUMNS:
        mine = [call for call in calls if call["column"] == column]
        if not mine:
            continue
        summary[column] = {}
        for group in (*LANGUAGES, "all"):
            pairs = [
                (c, s)
                for call in mine
                for c, s in zip(call["candidates"], shares(call), strict=True)
                if group in (c["language"], "all")
            ]
            seconds = sum(s for _, s in pairs)
            stages: dict[str, float] = {}
            for c, _ in pairs:
                for stage, s in c["seconds"].items():
                    stages[stage] = stages.get(stage, 0.0) + s
            summary[column][group] = {
                "candidates": len(pairs),
                "passed": sum(c["status"] == "passed" for c, _ in pairs),
                "seconds": seconds,
                "per_hour": 3600 * len(pairs) / seconds if seconds else None,
                "stages": {stage: s / len(pairs) for stage, s in stages.items()},
            }
        if column != "kernelbench":
            outside = [
                call["wall_s"] - sum(sum(c["seconds"].values()) for c in call["candidates"]) for call in mine
            ]
            arrivals = [call["verdicts_after_s"] for call in mine]
            later = [b - a for times in arrivals for a, b in itertools.pairwise(times)]
            summary[column]["calls"] = {
                "calls": len(mine),
                "outside_stages_s": sum(outside) / len(outside),
                "first_verdict_s": sum(times[0] for times in arrivals) / len(arrivals),
                "later_verdict_s": sum(later) / len(later) if later else None,
            }
    for column, groups in summary.items():
        for group in (*LANGUAGES, "all"):
            ours, theirs = (
                groups[group]["per_hour"],
                summary.get("kernelbench", {}).get(group, {}).get("per_hour"),
            )
            groups[group]["ratio"] = ours / theirs if ours and theirs and column != "kernelbench" else None
    return summary


def table(summary: dict[str, Any]) -> str:
    order = [column for column in ("kernelbench", "kernelpro", "kernelpro_runtime") if column in summary]
    if not order:
        return "\nno task is finished in every column yet"
    lines = [
        "",
        "Candidates an hour (passed of judged)",
        f"{'':14}" + "".join(f"{TITLES[c]:>26}" for c in order),
    ]
    for group in (*LANGUAGES, "all"):
        cells = [summary[c][group] for c in order]
        texts = [
            f"{x['per_hour']:.0f} ({x['passed']}/{x['candidates']})" if x["per_hour"] else "-" for x in cells
        ]
        lines.append(f"{group:14}" + "".join(f"{t:>26}" for t in texts))
    if "kernelbench" in summary and len(order) > 1:
        lines += ["", "Times as many as KernelBench"]
        for group in (*LANGUAGES, "all"):
            ratios = [summary[c][group]["ratio"] for c in order]
            lines.append(f"{group:14}" + "".join(f"{r:>25.1f}x" if r else f"{'':26}" for r in ratios))
    for column in order:
        groups = summary[column]
        stages = sorted(groups["all"]["stages"], key=lambda stage: -groups["all"]["stages"][stage])
        lines += [
            "",
            f"Where the seconds of a candidate go: {TITLES[column]}",
            f"{'stage':24}" + "".join(f"{g:>10}" for g in LANGUAGES),
        ]
        for stage in stages:
            lines.append(
                f"{stage:24}" + "".join(f"{groups[g]['stages'].get(stage, 0.0):>10.2f}" for g in LANGUAGES)
            )
        totals = {g: groups[g]["seconds"] / (groups[g]["candidates"] or 1) for g in LANGUAGES}
        outside = {g: totals[g] - sum(groups[g]["stages"].values()) for g in LANGUAGES}
        lines.append(f"{'in no stage':24}" + "".join(f"{outside[g]:>10.2f}" for g in LANGUAGES))
        lines.append(f"{'total':24}" + "".join(f"{totals[g]:>10.2f}" for g in LANGUAGES))
        if any(s < -0.005 for s in outside.values()):
            lines.append("(below zero: stages of several candidates ran side by side)")
        if calls := groups.get("calls"):
            later = calls["later_verdict_s"]
            lines.append(
                f"{calls['calls']} calls; first verdict after {calls['first_verdict_s']:.2f} s"
                + (f", each later one after {later:.2f} s more" if later is not None else "")
                + f"; {calls['outside_stages_s']:.2f} s a call in no stage"
            )
    return "\n".join(lines)
