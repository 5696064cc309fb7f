"""The report as one plain dictionary: what HTML, Markdown and JSON have in common.

Everything comes from the store; nothing is measured or judged here. Keys are stable: they are added to, never renamed,
while `schema` stays the same.

    run          what was asked for, and how it ended       steps        every candidate, see steps.py
    verdict      the headline and the winner's numbers      winner       its source and what is left to find
    baselines    what it was held against                   environment  where it was measured
    cost         what it took                               reproduce    the exact commands
    progress     best so far                                notes        what to keep in mind
    roofline     the way up under the roof                  reference    the task's source
    front        speed against energy, where measured
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kernelpro.engine import exchanges
from kernelpro.engine.store import Store
from kernelpro.records import Outcome, RunConfig, Step, Verdict
from kernelpro.report import curves, front, reproduce, sentence, steps

SCHEMA = 1
_VERDICT = (
    *(
        "result",
        "headline",
        "sentences",
        "step",
        "author",
        "by",
        "compiler",
        "original",
        "language",
        "reason",
        "ms",
        "speedup",
        "best_baseline",
    ),
    *(
        "faster",
        "error",
        "error_of_limit",
        "tolerance",
        "floor_ms",
        "of_floor",
        "sandbox",
        "authored_share",
        "peak_bytes",
    ),
    *("parameters", "rounds", "verified_calls", "control", "energy"),
)
"""Keys of `verdict`, all of them there in every report."""
_NOISY = 0.1
"""Width of the A/A control's interval above which a reader should know of it: at 5 % either side small gains drown."""


@dataclass(frozen=True)
class _Read:
    """What the store says, read once."""

    store: Store
    config: RunConfig
    ground: dict[str, Any]
    outcome: Outcome | None
    known: dict[int, Step]
    failure: str
    """Why the last sitting ended in an error; empty where it did not."""
    best: Step | None
    """The winner; of a run that is not finished, the fastest step so far."""
    verdict: Verdict | None
    """The winner's last."""
    asked: exchanges.Exchanges

    @property
    def precision(self) -> str | None:
        return self.ground.get("precision") or self.config.task.precision

    @property
    def counts(self) -> Counter[str]:
        return Counter(step.state for step in self.known.values())

    @property
    def path(self) -> list[Step]:
        """From the first design to the winner."""
        path: list[Step] = []
        at = self.best
        while at is not None and at not in path:
            path.insert(0, at)
            at = self.known.get(at.parent)
        return path


def gather(store: Store) -> dict[str, Any]:
    """Everything about a run, finished or not."""
    run = _read(store)
    number = run.best.number if run.best else None
    return {
        "schema": SCHEMA,
        "run": _run(run),
        "verdict": _verdict(run),
        "baselines": _baselines(run),
        "floor_ms": run.ground.get("floor_ms"),
        "cost": _cost(run),
        "progress": curves.progress(run.known.values(), store),
        "roofline": curves.roofline(run.ground, _stops(run)),
        "front": [point.to_json() for point in front.points(run.outcome, run.known.values())],
        "steps": _steps(run),
        "winner": _winner(run),
        "reference": {"name": run.config.task.name, "source": run.config.task.source},
        "environment": _environment(run),
        "reproduce": reproduce.commands(store, run.config, run.precision, number, _goes_on(run)),
        "notes": _notes(run),
    }


def _goes_on(run: _Read) -> bool:
    """Not where it has ended, nor where the task was refused before anything was tried."""
    return run.outcome is None and not (run.failure and not run.ground)


def _read(store: Store) -> _Read:
    outcome, recorded = store.outcome(), store.steps()
    asked = exchanges.read(store.folder, recorded)
    known = {step.number: replace(step, cost=asked.steps[step.number]) for step in recorded}
    failure = ""
    for _, kind, data in store.events():
        if kind in ("begun", "failed"):
            failure = str(data.get("reason", ""))
    if outcome is not None:
        best = known.get(outcome.best) if outcome.best is not None else None
        verdict = outcome.verdict if best else None
    else:
        passed = [step for step in known.values() if step.ms is not None]
        best = min(passed, key=lambda step: step.ms or 0.0, default=None)
        verdict = best.verdict if best else None
    return _Read(store, store.config(), store.ground() or {}, outcome, known, failure, best, verdict, asked)


# --- the run and its verdict -------------------------------------------------------------------------------


def _run(run: _Read) -> dict[str, Any]:
    config, outcome = run.config, run.outcome
    return {
        "id": run.store.id,
        "home": reproduce.home_option(run.store),
        "task": config.task.name,
        "target": config.target,
        "precision": run.precision,
        "mode": config.task.mode,
        "author": config.author,
        "models": config.models,
        "policy": config.policy,
        "seed": config.seed,
        "objective": config.objective,
        "concurrency": config.concurrency,
        "limits": config.limits.to_json(),
        "begun": datetime.fromtimestamp(run.store.created, UTC).isoformat(timespec="seconds"),
        "state": "finished" if outcome else "failed" if run.failure else "unfinished",
        "reason": outcome.reason if outcome else run.failure,
    }


def _verdict(run: _Read) -> dict[str, Any]:
    best, verdict = run.best, run.verdict
    if best is None or verdict is None:
        result, headline = _without_winner(run)
        return dict.fromkeys(_VERDICT) | {
            "result": result,
            "headline": headline,
            "sentences": [],
            "speedup": {},
            "compiler": False,
        }
    headline = sentence.won(verdict, best)
    if run.outcome is None:
        headline = f"Not finished; best so far, judged once: {headline}"
    taken, energy = verdict.times["candidate"], steps.energy(verdict)
    metered = f"Energy: {sentence.joules(energy)}." if energy else ""
    told = (sentence.unwrapped(verdict, best), sentence.correct(verdict), sentence.distance(verdict), metered)
    return {
        "result": "unfinished" if run.outcome is None else sentence.result(verdict),
        "headline": headline,
        "sentences": [text for text in told if text],
        "step": best.number,
        "author": best.author,
        "by": sentence.by(best.author),
        "compiler": sentence.compiled(best.author),
        "original": sentence.original(best.author),
        "language": verdict.language,
        "reason": verdict.reason,
        "ms": taken.to_json(),
        "speedup": {name: ratio.to_json() for name, ratio in verdict.speedup.items()},
        "best_baseline": sentence.best_of(verdict),
        "faster": verdict.faster,
        "error": verdict.error,
        "error_of_limit": verdict.error_of_limit,
        "tolerance": verdict.tolerance,
        "floor_ms": verdict.floor_ms,
        "of_floor": verdict.floor_ms / taken.value if verdict.floor_ms else None,
        "sandbox": verdict.sandbox,
        "authored_share": verdict.authored_share,
        "peak_bytes": verdict.peak_bytes,
        "parameters": verdict.parameters,
        "rounds": verdict.measurement.get("rounds"),
        "verified_calls": verdict.measurement.get("verified_calls"),
        "control": verdict.measurement.get("a_a"),
        "energy": energy,
    }


def _without_winner(run: _Read) -> tuple[str, str]:
    counts = run.counts
    if run.outcome is not None:
        return "no winner", sentence.lost(run.outcome, counts)
    if run.failure:
        return "failed", f"The run could not go on: {run.failure.rstrip('.')}."
    tried = (
        f"{sum(counts.values())} steps, none of which has passed"
        if counts
        else "no candidate has been written"
    )
    return "unfinished", f"Not finished: {tried} so far."


def _baselines(run: _Read) -> list[dict[str, Any]]:
    """Slowest first. Times are of the winner's own verdict where there is one: they were taken side by side."""
    verdict = run.verdict
    found: list[dict[str, Any]] = []
    for name, value in run.ground.get("baselines", {}).items():
        interval = verdict.times.get(name) if verdict else None
        ratio = verdict.speedup.get(name) if verdict else None
        found.append(
            {
                "name": name,
                "label": sentence.baseline(name),
                "ms": interval.to_json() if interval else {"value": value, "low": None, "high": None},
                "speedup": ratio.to_json() if ratio else None,
                "best": False,
            }
        )
    found.sort(key=lambda row: -row["ms"]["value"])
    hardest = sentence.best_of(verdict) if verdict else (found[-1]["name"] if found else "")
    for row in found:
        row["best"] = row["name"] == hardest
    return found


def _cost(run: _Read) -> dict[str, Any]:
    known, uses = run.known, run.store.device_seconds
    return {
        "candidates": sum(bool(step.source) for step in known.values()),
        "outcomes": dict(run.counts.most_common()),
        "tuning_points": sum(len(step.details.get("tuned", {}).get("tried", ())) for step in known.values()),
        **run.asked.total.to_json(),
        "roles": [{"role": role} | cost.to_json() for role, cost in run.asked.roles.items()],
        "wall_seconds": run.store.wall_seconds,
        "device_seconds": sum(uses.values()),
        "device_uses": uses,
    }


# --- steps, charts, winner ---------------------------------------------------------------------------------


def _steps(run: _Read) -> list[dict[str, Any]]:
    path = {step.number for step in run.path}
    finalists = run.outcome.finalists if run.outcome else ()
    return [
        steps.describe(step, run.known.get(step.parent), run.store)
        | {"winner": step is run.best, "on_path": number in path, "finalist": number in finalists}
        for number, step in run.known.items()
    ]


def _stops(run: _Read) -> list[dict[str, Any]]:
    """Baselines, slowest first, then every kernel that works on the way to the winner."""
    stops: list[dict[str, Any]] = []
    for row in _baselines(run):
        stops.append({"label": row["label"], "kind": "baseline", "ms": row["ms"]["value"], "step": None})
    for step in run.path:
        if step.ms is None:
            continue
        last = step is run.best
        ms = run.verdict.times["candidate"].value if run.verdict and last else step.ms
        kind = "winner" if last else "step"
        made = f"step {step.number}" + (" (compiler)" if sentence.compiled(step.author) else "")
        stops.append({"label": made, "kind": kind, "ms": ms, "step": step.number})
    return stops


def _winner(run: _Read) -> dict[str, Any] | None:
    best = run.best
    if best is None:
        return None
    return {
        "step": best.number,
        "source": run.store.source(best.final_source),
        "diagnosis": steps.diagnosis(best.diagnosis) if best.diagnosis else None,
        "not_profiled": best.details.get("not_profiled", ""),
    }


def _environment(run: _Read) -> dict[str, Any]:
    """Of the winner's verdict, else of any; with the ceilings that were measured."""
    seen = [run.verdict] if run.verdict else [step.verdict for step in run.known.values() if step.verdict]
    place = dict(seen[-1].environment) if seen else {}
    hardware = run.ground.get("hardware", {})
    return {
        "place": {name: value for name, value in place.items() if value is not None},
        "device": hardware.get("name", ""),
        "facts": hardware.get("facts", []),
        "bandwidth": hardware.get("bandwidth"),
        "rates": hardware.get("rates", {}),
        "sandbox": seen[-1].sandbox if seen else "",
        "prompts": list(run.asked.prompts),
    }


# --- notes -------------------------------------------------------------------------------------------------


def _notes(run: _Read) -> list[str]:
    """What a reader should keep in mind, most important first; each once."""
    outcome, best, verdict = run.outcome, run.best, run.verdict
    notes = list(outcome.notes) if outcome else []
    if outcome is None and verdict is not None:
        notes.append("The final judgement at full length has not been made: numbers may still change.")
    if run.failure and run.known:
        notes.insert(0, f"The last sitting ended early: {run.failure}")
    if verdict is not None:
        notes += verdict.notes
        notes += _doubts(verdict)
    if best is not None and best.details.get("not_profiled"):
        notes.append(f"The winner was not profiled: {best.details['not_profiled']}")
    for step in run.known.values():
        for skipped in step.diagnosis.skipped if step.diagnosis else ():
            enable = f"; to enable it, {skipped.enable}" if skipped.enable else ""
            notes.append(f"Not looked at, {skipped.what}: {skipped.why}{enable}")
    notes += [f"Damaged record: {line}" for line in run.store.damaged]
    return list(dict.fromkeys(notes))


def _doubts(verdict: Verdict) -> list[str]:
    found = []
    if verdict.sandbox not in ("", "namespaces"):
        found.append(
            f"The sandbox was {verdict.sandbox}, which is weaker than namespaces: trust the candidates' authors that far."
        )
    control = verdict.measurement.get("a_a")
    if control and control["high"] - control["low"] > _NOISY:
        spread = f"[{control['low']:.2f}, {control['high']:.2f}]"
        found.append(
            f"The machine was noisy: the same code timed against itself gave {spread} instead of 1; mind the intervals."
        )
    if verdict.floor_ms and verdict.times["candidate"].value < verdict.floor_ms:
        found.append(
            "The winner is faster than the floor, which counts every byte once at the bandwidth of main memory."
        )
    return found
