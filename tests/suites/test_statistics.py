"""fast_p and means: what must hold for any results."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from engine.verdicts import verdict

from kernelpro.records import Interval
from kernelpro.suites.statistics import THRESHOLDS, fast_p, geomean, summarize, summarize_energy

Results = list[Interval | None]


def any_results(count: int = 200) -> Iterator[Results]:
    dice = random.Random(1)
    for _ in range(count):
        found: Results = []
        for _ in range(dice.randint(1, 30)):
            value = math.exp(dice.gauss(0, 1))
            spread = math.exp(abs(dice.gauss(0, 0.1)))
            found.append(None if dice.random() < 0.3 else Interval(value, value / spread, value * spread))
        yield found


def test_by_hand() -> None:
    results = [Interval(2.0, 1.9, 2.1), Interval(0.5, 0.4, 0.6), None, Interval(1.1, 0.9, 1.3)]
    found = summarize(results)
    assert (found.problems, found.correct, found.correct_rate) == (4, 3, 0.75)
    assert found.fast == {"1": 0.5, "1.2": 0.25, "1.5": 0.25, "2": 0.0, "5": 0.0}, (
        "more than p times as fast, not as fast"
    )
    assert found.surely_fast == {"1": 0.25, "1.2": 0.25, "1.5": 0.25, "2": 0.0, "5": 0.0}
    assert found.geomean and found.geomean.value == pytest.approx((2.0 * 0.5 * 1.1) ** (1 / 3))


def test_nothing_right_and_nothing_at_all() -> None:
    assert summarize([None, None]).geomean is None
    assert summarize([None, None]).fast["1"] == 0.0
    assert summarize([]).correct_rate == 0.0


def test_fast_p_falls_with_p_and_never_exceeds_the_correct_rate() -> None:
    for results in any_results():
        found = summarize(results)
        shares = [found.fast[f"{p:g}"] for p in THRESHOLDS]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] <= found.correct_rate
        assert all(found.surely_fast[p] <= found.fast[p] for p in found.fast)


def test_a_failure_lowers_fast_p_and_leaves_the_geomean() -> None:
    for results in any_results():
        values = [r.value if r else None for r in results]
        assert fast_p([*values, None], 1.0) * (len(values) + 1) == pytest.approx(
            fast_p(values, 1.0) * len(values)
        )
        assert geomean([*results, None]) == geomean(results)


def test_the_geomean_is_blind_to_order_and_its_interval_holds_it() -> None:
    for results in any_results():
        found, turned = geomean(results), geomean(results[::-1])
        if found is None or turned is None:
            assert not any(results)
            continue
        assert found.value == pytest.approx(turned.value)
        right = [r for r in results if r]
        assert min(r.value for r in right) <= found.value * (1 + 1e-12) and found.value <= max(
            r.value for r in right
        ) * (1 + 1e-12)
        assert found.low <= found.value <= found.high
        widest = max(math.log(r.high / r.low) for r in right)
        assert math.log(found.high / found.low) <= widest + 1e-12, (
            "the mean is known no worse than its worst part"
        )


def test_twice_as_fast_everywhere_doubles_the_geomean() -> None:
    for results in any_results():
        doubled = [Interval(2 * r.value, 2 * r.low, 2 * r.high) if r else None for r in results]
        before, after = geomean(results), geomean(doubled)
        if before and after:
            assert after.value == pytest.approx(2 * before.value)


def test_energies_beside_different_baselines_have_no_common_mean() -> None:
    told = [verdict(0.5, 0.8), verdict(0.5, 1.25), verdict(1.0, 0.9, against="eager_tf32")]
    found = summarize_energy([v.energy for v in told if v.energy])
    assert {name: mean.problems for name, mean in found.items()} == {"compile": 2, "eager_tf32": 1}
    mean = found["compile"]
    assert mean.energy.value == pytest.approx(0.5) and mean.edp.value == pytest.approx(0.25)
    assert math.log(mean.energy.high / mean.energy.value) == pytest.approx(math.log(1.01) / math.sqrt(2)), (
        "known better than each"
    )
    assert summarize_energy([]) == {}
