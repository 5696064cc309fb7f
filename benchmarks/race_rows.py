"""Rows of a bench with an author: what its folder holds about each problem, as plain data.

A library for race_table.py, not a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.engine.store import RunStore
from kernelpro.records import Outcome, Status, Step, TaskFacts
from kernelpro.suites.results_log import LoggedResult
from kernelpro.suites.scoreboard import FILE, NO_KERNEL, NOT_JUDGED, NOT_RUN

Row = dict[str, Any]
_MAX_REASON = 300
UNFINISHED = "unfinished"
"""The status of a problem whose search was interrupted."""
NOT_BEGUN = "not begun"
"""The status of a problem whose search has not begun."""


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of benches (folders) and of files with rows. Of several rows of a problem the last one counts,
    but one of a problem that has not begun counts only if there is no other."""
    rows: dict[str, Row] = {}
    for path in paths:
        for row in _read_folder(path) if path.is_dir() else _read_file(path):
            if row["status"] != NOT_BEGUN or row["problem"] not in rows:
                rows[row["problem"]] = row
    return sorted(rows.values(), key=lambda row: [int(part) for part in re.findall(r"\d+", row["problem"])])


def _read_file(path: Path) -> list[Row]:
    """Rows that were written before. The first ones had no status and no proper label."""
    rows = list(map(json.loads, path.read_text().splitlines()))
    if not all("device_s" in row for row in rows):
        raise ValueError(f"{path} has no rows of a bench")
    return [
        {"status": Status.PASSED.value if row.get("winner") else UNFINISHED, "reason": ""}
        | row
        | {"problem": _label(row["problem"])}
        for row in rows
    ]


def level_of(row: Row) -> int:
    """The level of a problem; 0 without levels."""
    match = re.match(r"(\d+)/", row["problem"])
    return int(match[1]) if match else 0


def _read_folder(folder: Path) -> list[Row]:
    results: dict[str, LoggedResult] = {}
    with suppress(FileNotFoundError):
        for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # a truncated line
                result = LoggedResult.from_json(json.loads(line))
                results[_slug(result.problem)] = result
    rows = []
    for path in sorted(folder.glob("runs/*/run.db")):
        slug = path.parent.name.rpartition("-")[0]
        rows.append(_read_run(path.parent, results.get(slug)))
    begun = {row["problem"] for row in rows}
    return [*rows, *(_not_begun(label) for label in _pending(folder) if label not in begun)]


def _pending(folder: Path) -> list[str]:
    """The problems without a result when the bench ended last."""
    try:
        return list(json.loads((folder / FILE).read_text(encoding="utf-8"))["pending"])
    except (OSError, ValueError, KeyError):  # it was killed before it ended for the first time
        return []


def _not_begun(label: str) -> Row:
    return {"problem": label, "status": NOT_BEGUN, "reason": "", "device_s": {}, "wall_s": 0.0, "judged": []}


def _label(slug: str) -> str:
    """A problem's label, from the name of its run: `1-36-RMSNorm` is `1/36 RMSNorm`."""
    if "/" in slug or " " in slug:
        return slug
    return re.sub(r"^(?:(\d+)-)?(\d+)-", lambda found: f"{found[1]}/" * bool(found[1]) + f"{found[2]} ", slug)


def _slug(label: str) -> str:
    """A problem's label as in the name of its run."""
    return re.sub(r"[^\w.-]+", "-", label)


def _read_run(folder: Path, result: LoggedResult | None) -> Row:
    store = RunStore(folder)
    facts, outcome, steps = store.task_facts(), store.outcome(), store.steps()
    row: Row = {
        "problem": result.problem if result else _label(folder.name.rpartition("-")[0]),
        **_status(result),
        "device_s": {use: round(seconds, 2) for use, seconds in store.device_seconds.items()},
        "wall_s": round(store.wall_seconds, 2),
        "ended": outcome.reason if outcome else "",
        "notes": list(outcome.notes) if outcome else [],
        "effort": store.config().options.effort,
    }
    if facts:
        row |= _describe_task(facts) | {"race": _describe_race(facts, steps)}
    row["judged"] = [
        {
            "step": step.number,
            "author": step.author,
            "status": step.verdict.status.value,
            "reason": step.verdict.reason[:_MAX_REASON],
            "ms": step.ms,
        }
        for step in steps
        if step.verdict
    ]
    if outcome and outcome.verdict and outcome.best is not None:
        winner = next(step for step in steps if step.number == outcome.best)
        row |= _describe_winner(winner, store.source(winner.final_source), outcome)
    store.close()
    return row


def _status(result: LoggedResult | None) -> Row:
    if result is None:
        return {"status": UNFINISHED, "reason": ""}
    verdict, error = result.result.verdict, result.failure or result.result.error
    if verdict and not error:
        status, reason = verdict.status.value, "" if verdict.status is Status.PASSED else verdict.reason
    elif error:
        status, reason = NOT_JUDGED if result.failure else NOT_RUN, error
    else:
        status, reason = NO_KERNEL, result.reason
    return {"status": status, "reason": reason[:_MAX_REASON], "no_gain": result.no_gain}


def _describe_task(facts: TaskFacts) -> Row:
    bound = ""
    rate = facts.hardware.rates.get(facts.unit)
    if facts.work and facts.hardware.bandwidth and rate:
        moving = facts.work.total_bytes / facts.hardware.bandwidth
        bound = "memory" if moving >= facts.work.matrix_flops / rate else "products"
    return {
        "baselines_ms": facts.baselines,
        "floor_ms": facts.floor_ms,
        "bound": bound,
        "precision": facts.precision,
        "seed_errors": facts.seed_errors,
        "hardware": facts.hardware.name,
        "torch": facts.hardware.facts.get("torch", ""),
    }


def _describe_race(facts: TaskFacts, steps: list[Step]) -> list[Row]:
    by_code = {step.details.fingerprint: step for step in reversed(steps)}
    return [
        {
            "step": by_code[code].number if code in by_code else None,
            "author": by_code[code].author if code in by_code else "",
            "plan": by_code[code].plan if code in by_code else "",
            "status": design.status.value,
            "ratio": design.ratio,
            "reason": design.reason[:_MAX_REASON],
            "seconds": design.seconds,
        }
        for code, design in facts.race.items()
    ]


def _describe_winner(winner: Step, source: str, outcome: Outcome) -> Row:
    verdict = outcome.verdict
    assert verdict
    form = ""
    with suppress(NoProposal):  # only the playbook's own sources have a form
        design = parse_design(source)
        form = f"{design.form}{', CUDA graph' if design.graph else ''}"
    row = {
        "winner": winner.author,
        "plan": winner.plan,
        "language": verdict.language,
        "form": form,
        "ms": verdict.times["candidate"].value,
        "speedup": {name: ratio.to_json() for name, ratio in verdict.speedup.items()},
        "own_share": verdict.own_share,
        "faster": verdict.faster,
        "floor_ms": verdict.floor_ms,
        "preparation_s": verdict.measurement.preparation_seconds,
        "judging_s": verdict.measurement.seconds,
    }
    if winner.diagnosis and winner.diagnosis.account:
        row["account"] = [{"part": part.part, "ms": part.ms} for part in winner.diagnosis.account]
    return row
