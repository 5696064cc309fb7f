"""Collects the contents of a report from the store. Nothing is measured or judged here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kernelpro.engine import model_costs
from kernelpro.engine.store import RunStore
from kernelpro.records import ComparableTimes, Hardware, Outcome, RunConfig, Step, TaskFacts, Verdict
from kernelpro.records.events import RunFailed, RunStarted
from kernelpro.report import charts, pareto_plot, reproduce, steps, wording
from kernelpro.report.schema import (
    BaselineSummary,
    CostSummary,
    EnvironmentSummary,
    ReferenceSource,
    ReportData,
    RooflineStop,
    RunSummary,
    StepSummary,
    VerdictSummary,
    WinnerSummary,
)

_NOISY = 0.1
"""If the interval of the A/A control is wider than this, a note says so: with 5 % of noise on either side,
small gains cannot be seen."""


@dataclass(frozen=True)
class _RunData:
    """The contents of a store."""

    store: RunStore
    config: RunConfig
    facts: TaskFacts | None
    outcome: Outcome | None
    steps: dict[int, Step]
    failure: str
    """The error that ended the last session; empty if it ended without one."""
    best: Step | None
    """The winner; in an unfinished run, the fastest step so far."""
    verdict: Verdict | None
    """The latest verdict on `best`."""
    times: ComparableTimes
    costs: model_costs.ModelCosts

    @property
    def precision(self) -> str | None:
        return self.facts.precision if self.facts else self.config.task.precision

    @property
    def counts(self) -> Counter[str]:
        return Counter(step.state for step in self.steps.values())

    @property
    def path(self) -> list[Step]:
        """The steps from the first design to the winner."""
        path: list[Step] = []
        step = self.best
        while step is not None and step not in path:
            path.insert(0, step)
            step = self.steps.get(step.parent)
        return path

    @property
    def can_resume(self) -> bool:
        """Whether the run is unfinished and did not fail before its task was measured."""
        return self.outcome is None and not (self.failure and not self.facts)


def collect_report(store: RunStore) -> ReportData:
    """The report of a run, finished or not."""
    run = _read(store)
    baselines = _baselines(run)
    return ReportData(
        run=_summarize_run(run),
        verdict=_summarize_verdict(run),
        baselines=baselines,
        floor_ms=run.facts.floor_ms if run.facts else None,
        cost=_summarize_cost(run),
        progress=charts.progress(run.steps.values(), store, run.times),
        roofline=charts.roofline(run.facts, _stops(run, baselines)),
        pareto_front=pareto_plot.points(run.outcome, run.steps.values(), run.times),
        steps=_summarize_steps(run),
        winner=_summarize_winner(run),
        reference=ReferenceSource(run.config.task.name, run.config.task.source),
        environment=_summarize_environment(run),
        reproduce=reproduce.commands(
            store, run.config, run.precision, run.best.number if run.best else None, run.can_resume
        ),
        notes=_notes(run),
    )


def _read(store: RunStore) -> _RunData:
    outcome, stored, facts = store.outcome(), store.steps(), store.task_facts()
    times = ComparableTimes.of(facts)
    costs = model_costs.read(store.folder, stored)
    all_steps = {step.number: replace(step, cost=costs.steps[step.number]) for step in stored}
    failure = ""
    for _, event in store.events():
        if isinstance(event, (RunStarted, RunFailed)):
            failure = event.reason if isinstance(event, RunFailed) else ""
    if outcome is not None:
        best = all_steps.get(outcome.best) if outcome.best is not None else None
        verdict = outcome.verdict if best else None
    else:
        passed = [step for step in all_steps.values() if step.ms is not None]
        best = min(passed, key=lambda step: times.ms(step) or 0.0, default=None)
        verdict = best.verdict if best else None
    return _RunData(store, store.config(), facts, outcome, all_steps, failure, best, verdict, times, costs)


# --- the run and its verdict -------------------------------------------------------------------------------


def _summarize_run(run: _RunData) -> RunSummary:
    config, outcome = run.config, run.outcome
    return RunSummary(
        id=run.store.id,
        runs_dir_option=reproduce.runs_dir_option(run.store),
        task=config.task.name,
        target=config.target,
        precision=run.precision,
        mode=config.task.mode,
        author=config.author,
        models=config.models,
        policy=config.policy,
        seed=config.seed,
        objective=config.objective,
        concurrency=config.concurrency,
        limits=config.limits,
        started=datetime.fromtimestamp(run.store.created, UTC).isoformat(timespec="seconds"),
        state="finished" if outcome else "failed" if run.failure else "unfinished",
        reason=outcome.reason if outcome else run.failure,
    )


def _unseen_sentence(verdict: Verdict) -> str:
    text = wording.describe_unseen(verdict, of_winner=True)
    return f"is {text}" if text.startswith("also") else text


def _summarize_verdict(run: _RunData) -> VerdictSummary:
    best, verdict = run.best, run.verdict
    if best is None or verdict is None:
        return VerdictSummary(*_result_without_winner(run))
    headline = wording.winner_headline(verdict, best)
    if run.outcome is None:
        headline = f"Not finished; best so far, judged once: {headline}"
    ms, energy, control = verdict.times["candidate"], verdict.energy, verdict.measurement.a_a
    sentences = (
        wording.compiler_note(verdict, best),
        wording.describe_error(verdict),
        wording.describe_floor(verdict),
        *(f"{line[0].upper()}{line[1:]}." for line in wording.describe_shapes(verdict)),
        f"It {unseen}." if (unseen := _unseen_sentence(verdict)) else "",
        f"Energy: {wording.describe_energy(energy)}." if energy else "",
    )
    return VerdictSummary(
        result="unfinished" if run.outcome is None else wording.speed_result(verdict),
        headline=headline,
        sentences=tuple(filter(None, sentences)),
        step=best.number,
        author=best.author,
        author_name=wording.author_name(best.author),
        is_compiler=wording.is_compiler(best.author),
        is_original=wording.is_original(best.author),
        language=verdict.language,
        reason=verdict.reason,
        ms=ms,
        speedup=verdict.speedup,
        hardest_baseline=wording.hardest_baseline(verdict),
        faster=verdict.faster,
        error=verdict.error,
        error_of_limit=verdict.error_of_limit,
        tolerance=verdict.tolerance,
        floor_ms=verdict.floor_ms,
        of_floor=verdict.of_floor,
        sandbox=verdict.sandbox,
        own_share=verdict.own_share,
        shapes=verdict.shapes,
        unseen_shape=verdict.unseen_shape,
        peak_bytes=verdict.peak_bytes,
        parameters=verdict.parameters,
        rounds=verdict.measurement.rounds or None,
        verified_calls=verdict.measurement.verified_calls or None,
        control=control,
        energy=steps.energy_without_windows(verdict),
    )


def _result_without_winner(run: _RunData) -> tuple[str, str]:
    """The result and the headline of a run without a winner."""
    counts = run.counts
    if run.outcome is not None:
        return "no winner", wording.no_winner_headline(run.outcome, counts)
    if run.failure:
        return "failed", f"The run failed: {run.failure.rstrip('.')}."
    tried = f"{counts.total()} steps, none of which passed" if counts else "no candidate has been written"
    return "unfinished", f"Not finished: {tried} so far."


def _baselines(run: _RunData) -> tuple[BaselineSummary, ...]:
    verdict = run.verdict
    times = run.facts.baselines if run.facts else {}
    intervals = {name: verdict.times.get(name) if verdict else None for name in times}
    values = {name: interval.value if interval else times[name] for name, interval in intervals.items()}
    names = sorted(values, key=lambda name: -values[name])
    hardest = wording.hardest_baseline(verdict) if verdict else names[-1] if names else ""
    return tuple(
        BaselineSummary(
            name,
            wording.baseline_name(name),
            values[name],
            times[name],
            intervals[name],
            verdict.speedup.get(name) if verdict else None,
            name == hardest,
        )
        for name in names
    )


def _summarize_cost(run: _RunData) -> CostSummary:
    all_steps, uses = run.steps.values(), run.store.device_seconds
    return CostSummary(
        candidates=sum(bool(step.source) for step in all_steps),
        outcomes=dict(run.counts.most_common()),
        tuning_points=sum(len(step.details.tuning.points) for step in all_steps if step.details.tuning),
        models=run.costs.total,
        roles=run.costs.roles,
        wall_seconds=run.store.wall_seconds,
        device_seconds=sum(uses.values()),
        device_uses=uses,
    )


# --- steps, charts, winner ---------------------------------------------------------------------------------


def _summarize_steps(run: _RunData) -> tuple[StepSummary, ...]:
    path = {step.number for step in run.path}
    finalists = run.outcome.finalists if run.outcome else ()
    return tuple(
        steps.summarize_step(
            step, run.steps.get(step.parent), run.store, run.times, step is run.best, path, finalists
        )
        for step in run.steps.values()
    )


def _stops(run: _RunData, baselines: tuple[BaselineSummary, ...]) -> list[RooflineStop]:
    """The points of the roofline: baselines, slowest first, then each passed step on the path to the
    winner."""
    stops = [RooflineStop(baseline.label, "baseline", baseline.comparable_ms) for baseline in baselines]
    for step in run.path:
        is_best = step is run.best
        time = run.times.interval(run.verdict if is_best else step.verdict)
        if time is None:
            continue
        label = f"step {step.number}{' (compiler)' if wording.is_compiler(step.author) else ''}"
        stops.append(RooflineStop(label, "winner" if is_best else "step", time.value, step.number))
    return stops


def _summarize_winner(run: _RunData) -> WinnerSummary | None:
    best = run.best
    if best is None:
        return None
    return WinnerSummary(
        best.number,
        run.store.source(best.final_source),
        steps.summarize_diagnosis(best.diagnosis) if best.diagnosis else None,
        best.details.profile_error,
    )


def _summarize_environment(run: _RunData) -> EnvironmentSummary:
    """The environment in the winner's verdict, else in the latest verdict."""
    verdicts = [run.verdict] if run.verdict else [step.verdict for step in run.steps.values() if step.verdict]
    software = verdicts[-1].environment.known() if verdicts else {}
    hardware = run.facts.hardware if run.facts else Hardware()
    return EnvironmentSummary(
        software=software,
        device=hardware.name,
        facts=tuple(f"{name}: {value}" for name, value in hardware.facts.items()),
        bandwidth=hardware.bandwidth or None,
        rates=hardware.rates,
        sandbox=verdicts[-1].sandbox if verdicts else "",
        prompts=run.costs.prompts,
    )


# --- notes -------------------------------------------------------------------------------------------------


def _notes(run: _RunData) -> tuple[str, ...]:
    """Remarks for the reader, most important first, without repetitions."""
    outcome, best, verdict = run.outcome, run.best, run.verdict
    notes = [f"The last session ended early: {run.failure}"] if run.failure and run.steps else []
    notes += outcome.notes if outcome else ()
    if outcome is None and verdict is not None:
        notes.append("The final judgement at full length has not been made: numbers may still change.")
    if verdict is not None:
        notes += (*verdict.notes, *_doubts(verdict))
    if best is not None and best.details.profile_error:
        notes.append(f"The winner was not profiled: {best.details.profile_error}")
    for step in run.steps.values():
        for skipped in step.diagnosis.skipped if step.diagnosis else ():
            enable = f"; to enable it, {skipped.enable}" if skipped.enable else ""
            notes.append(f"Not examined, {skipped.what}: {skipped.why}{enable}")
    notes += [f"Damaged record: {line}" for line in run.store.damage]
    return tuple(dict.fromkeys(notes))


def _doubts(verdict: Verdict) -> list[str]:
    doubts = []
    if verdict.sandbox not in ("", "namespaces"):
        doubts.append(
            f"The sandbox was {verdict.sandbox}, which is weaker than namespaces: "
            "trust this verdict only if you trust the authors of the candidates."
        )
    control = verdict.measurement.a_a
    if control and control.high - control.low > _NOISY:
        interval = f"[{control.low:.2f}, {control.high:.2f}]"
        doubts.append(
            f"The machine was noisy: the same code timed against itself gave {interval} instead of 1; "
            "check the intervals."
        )
    if verdict.floor_ms and verdict.times["candidate"].value < verdict.floor_ms:
        doubts.append(
            "The winner is faster than the floor, which counts every byte once at main memory bandwidth."
        )
    return doubts
