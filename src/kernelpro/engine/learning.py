"""What a run learns from its steps, and what it passes on to later runs.

Within a run, the memory collects attempts and errors, which follow from the steps, and facts, which authors
report. Across runs, every gain or loss of a step over its parent is an observation: method, bottleneck,
hardware, language, family of the task, and the hypothesis, confirmed or refuted. A run reads the observations
of earlier runs and adds its own at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from kernelpro.memory.knowledge import Knowledge, Observation
from kernelpro.memory.run_memory import Attempt, Fact, MemoryEvent, NodeError, describe_expectation
from kernelpro.records import ComparableTimes, NoVerdict, RunConfig, Status, Step, Verdict

_FAMILIES = (
    ("convolution", r"conv"),
    ("attention", r"attention|sdpa"),
    ("matmul", r"\b(mm|bmm|addmm|matmul|linear|Linear|einsum)\b"),
    ("normalisation", r"norm|Norm"),
    ("softmax", r"softmax|logsumexp"),
    ("loss", r"loss|Loss|cross_entropy"),
    ("scan", r"cumsum|cumprod|scan"),
    ("pooling", r"[pP]ool"),
    ("reduction", r"\b(sum|mean|max|min|amax|amin|norm|var|std)\b"),
)
"""Families of tasks. The first pattern that matches the reference's source decides; if none matches, the
family is element-wise."""
_MAX_ADVICE = 6
_MIN_EFFECT = math.log(1.02)
"""Smallest expected gain or loss (log of the speed-up) of a method that is shown; methods with a tested
hypothesis are always shown."""


def family(source: str) -> str:
    """The family of a task: convolution, attention, matmul, ..."""
    return next((name for name, pattern in _FAMILIES if re.search(pattern, source)), "element-wise")


def events(step: Step, parent: Step | None, times: ComparableTimes) -> Iterator[MemoryEvent]:
    """What a settled step adds to the memory of the run."""
    if step.source and step.no_verdict is not NoVerdict.INTERNAL_ERROR:
        failure = "" if step.ms else _failure(step)
        fresh = not (parent and parent.ms)
        yield Attempt(
            step.number,
            step.parent,
            step.plan or step.author or "no plan",
            step.hypothesis,
            None if failure else _gain(step, parent, times),
            failure,
            step.details.expected_speedup,
            fresh,
            times.ms(step),
        )
        if step.verdict and step.verdict.status in (Status.BUILD_FAILED, Status.CRASHED, Status.WRONG):
            yield NodeError(step.number, step.verdict.reason)
    yield from (Fact(text, step.number) for text in step.details.facts)


def _failure(step: Step) -> str:
    return f"{step.verdict.status}: {step.verdict.reason}" if step.verdict else step.note or "failed"


def _gain(step: Step, parent: Step | None, times: ComparableTimes) -> float:
    """The speed-up of a step over its parent, or over the fastest baseline if the parent did not pass."""
    if gain := times.gain(step, parent):
        return gain
    ratios = step.verdict.speedup.values() if step.verdict else ()
    return min((ratio.value for ratio in ratios), default=1.0)


def observations(
    steps: Iterable[Step], config: RunConfig, times: ComparableTimes, run: str
) -> Iterator[Observation]:
    """The observations for later runs: each step that passed, compared with its parent."""
    by_number = {step.number: step for step in steps}
    for step in by_number.values():
        parent = by_number.get(step.parent)
        gain = times.gain(step, parent)
        if not (gain and step.plan and parent and parent.diagnosis and step.verdict):
            continue
        yield Observation(
            method=step.plan,
            bound=parent.diagnosis.bound.value,
            hardware=_hardware(step.verdict, config),
            language=step.verdict.language,
            family=family(config.task.source),
            gain=math.log(gain),
            conditions=_expected(step, parent, times),
            run=run,
            node=str(step.number),
            date=datetime.now(UTC).date().isoformat(),
        )


def _expected(step: Step, parent: Step, times: ComparableTimes) -> str:
    """The step's hypothesis and whether it was confirmed; empty if the author expected no speed-up."""
    attempts = (event for event in events(step, parent, times) if isinstance(event, Attempt))
    return next((describe_expectation(attempt) for attempt in attempts if attempt.confirmed is not None), "")


def advice(knowledge: Knowledge, config: RunConfig, parent: Step | None) -> str:
    """What earlier runs observed under similar conditions, one line for each method; may be empty."""
    if not knowledge.enabled:
        return ""
    bound = parent.diagnosis.bound.value if parent and parent.diagnosis else ""
    language = parent.verdict.language if parent and parent.verdict else ""
    hardware = _hardware(parent.verdict if parent else None, config)
    results = knowledge.query(bound, hardware, family(config.task.source), language, _MAX_ADVICE)
    return "\n".join(
        f"- {a.method}: {math.exp(a.expected):.2f}x expected ({a.wins} of {a.count} times faster)"
        + (f"; the last attempt {a.conditions[0]}" if a.conditions else "")
        for a in results
        if a.conditions or abs(a.expected) >= _MIN_EFFECT
    )


def _hardware(verdict: Verdict | None, config: RunConfig) -> str:
    """The device on which a verdict was measured; if unknown, the run's target."""
    return (verdict.environment.device if verdict else "") or config.target
