"""Combines the verdicts on the shapes of a task into one verdict.

A candidate passes if it passes on every shape. Its time is the mean over all calls, weighted by how often
each shape occurs; the times of the baselines and the floor are averaged in the same way. This mean is the
time that a user waits, and a millisecond means the same to the search, the tuner and the budget. A geometric
mean of speed-ups would give a shape that takes a microsecond the same weight as one that takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelpro.lab.measure.statistics import faster_than_all
from kernelpro.records import ProbeData, ShapeTimes, Status, Verdict, Work
from kernelpro.records.shapes import mean_times, total_speedup


def judge_shapes(judge: Callable[[int], Verdict], shares: Sequence[float]) -> Verdict:
    """The verdict on all shapes. `judge` judges one shape, by its index; the first failure is the verdict.

    `shares`: how often each shape occurs, as a share of all calls.
    """
    verdicts: list[Verdict] = []
    for number in range(len(shares)):
        verdict = judge(number)
        if verdict.status is not Status.PASSED:
            return _on_shape(verdict, number) if len(shares) > 1 else verdict
        verdicts.append(verdict)
    return combine_verdicts(verdicts, shares)


def _on_shape(verdict: Verdict, number: int) -> Verdict:
    return replace(verdict, reason=f"on shape {number + 1}: {verdict.reason}")


def combine_verdicts(verdicts: Sequence[Verdict], shares: Sequence[float]) -> Verdict:
    """The verdict on all shapes from a passed verdict on each; a single verdict is returned unchanged."""
    if len(verdicts) == 1:
        return verdicts[0]
    shapes = tuple(
        replace(verdict.shapes[0], weight=share) for verdict, share in zip(verdicts, shares, strict=True)
    )
    times, speedup = mean_times(shapes), total_speedup(shapes)
    fastest = min(speedup, key=lambda name: speedup[name].value)
    spent = [shape.weight * shape.times["candidate"].value for shape in shapes]
    largest = verdicts[spent.index(max(spent))]
    least_exact = max(verdicts, key=lambda verdict: verdict.error_of_limit or 0.0)
    faster = faster_than_all(speedup)
    unseen = [verdict.unseen_shape for verdict in verdicts if verdict.unseen_shape]
    return replace(
        largest,
        reason=_reason(faster, fastest, speedup[fastest].value, shapes),
        error=least_exact.error,
        error_of_limit=least_exact.error_of_limit,
        tolerance=least_exact.tolerance,
        times=times,
        speedup=speedup,
        shapes=shapes,
        faster=faster,
        floor_ms=mean_floor(shapes),
        own_share=_mean_share(verdicts, spent),
        peak_bytes=max((verdict.peak_bytes or 0 for verdict in verdicts), default=None),
        unseen_shape=next((one for one in unseen if not one.passed), unseen[0] if unseen else None),
        notes=tuple(dict.fromkeys(note for verdict in verdicts for note in verdict.notes)),
        measurement=replace(
            largest.measurement,
            verified_calls=sum(verdict.measurement.verified_calls for verdict in verdicts),
            machine_code=verdicts[0].measurement.machine_code,
            seconds=_sums([verdict.measurement.seconds for verdict in verdicts]),
            preparation_seconds=_sums([verdict.measurement.preparation_seconds for verdict in verdicts]),
        ),
    )


def _reason(faster: str, baseline: str, ratio: float, shapes: Sequence[ShapeTimes]) -> str:
    compared = {"yes": "faster than", "no": "slower than", "unclear": "not clearly different from"}[faster]
    each = ", ".join(f"{shape.speedup[baseline].value:.2f}x on {shape.shape}" for shape in shapes)
    return f"correct; {compared} {baseline} ({ratio:.2f}x over all {len(shapes)} shapes: {each})"


def mean_floor(shapes: Sequence[ShapeTimes]) -> float | None:
    """The mean floor of a call; None if the floor of any shape is unknown."""
    floors = [shape.floor_ms for shape in shapes]
    if None in floors:
        return None
    return sum(shape.weight * (shape.floor_ms or 0.0) for shape in shapes)


def _mean_share(verdicts: Sequence[Verdict], spent: Sequence[float]) -> float | None:
    if any(verdict.own_share is None for verdict in verdicts):
        return None
    total = sum(share * (verdict.own_share or 0.0) for verdict, share in zip(verdicts, spent, strict=True))
    return total / sum(spent)


def _sums(seconds: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for times in seconds for name in times)
    return {name: sum(times.get(name, 0.0) for times in seconds) for name in names}


def combine_probes(probes: Sequence[ProbeData], shares: Sequence[float]) -> ProbeData:
    """The facts about all shapes from the facts about each; those about a single shape are unchanged."""
    if len(probes) == 1:
        return probes[0]
    failed = next((number for number, probe in enumerate(probes) if not probe.scorable), None)
    if failed is not None:
        return replace(probes[failed], reason=f"on shape {failed + 1}: {probes[failed].reason}")
    shapes = tuple(
        replace(probe.shapes[0], weight=share) for probe, share in zip(probes, shares, strict=True)
    )
    return replace(
        probes[0],
        work=_mean_work([probe.work for probe in probes], shares),
        baselines=mean_times(shapes),
        floor_ms=mean_floor(shapes),
        stage_seconds=_sums([probe.stage_seconds for probe in probes]),
        shapes=shapes,
    )


def _mean_work(works: Sequence[Work], shares: Sequence[float]) -> Work:
    def mean(values: Sequence[float]) -> float:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    return Work(
        round(mean([work.read_bytes for work in works])),
        round(mean([work.written_bytes for work in works])),
        mean([work.matrix_flops for work in works]),
        mean([work.vector_flops for work in works]),
    )
