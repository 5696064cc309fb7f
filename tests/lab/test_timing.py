"""Statistics of rounds and the agreement of the two clocks, on made-up samples with known answers."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kernelpro.lab.judge.clock_policy import (
    ClockDecision,
    adjust_for_interference,
    charge,
    decide_clocks,
    speedup,
    widen,
)
from kernelpro.lab.judge.decision import is_excused
from kernelpro.lab.measure import physics
from kernelpro.lab.measure.clocks import has_head_start, measure_clocks, solo_share
from kernelpro.lab.measure.physics import Ceilings, floor_ms, impossible_ms, reference_operations_ms
from kernelpro.lab.measure.rounds import Rounds, comparable_time, was_slowed
from kernelpro.lab.measure.samples import Sample
from kernelpro.lab.measure.statistics import SYSTEMATIC, above_one, faster_than_all, ratio_interval
from kernelpro.records import Interval, Target, Work

GPU = SYSTEMATIC["cuda"]


def rounds(
    candidate_ms: float,
    baseline_ms: float,
    hidden_ms: float = 0.0,
    sealed_ms: float = 0.0,
    noise: float = 0.02,
) -> Rounds:
    """Protocol of 0.4 ms with 40 us of noise; `hidden_ms` passes outside the candidate's clock."""
    made, dice = Rounds(), random.Random(1)
    for index in range(120):
        sealed = index % 4 == 0
        own = candidate_ms * (1 + noise * dice.gauss(0, 1))
        base = baseline_ms * (1 + noise * dice.gauss(0, 1))
        extra = hidden_ms + (sealed_ms if sealed else 0.0)
        made.add(
            {
                "candidate": Sample(own, own + extra + 0.4 + 0.04 * dice.gauss(0, 1), sealed),
                "base": Sample(base, base + 0.4 + 0.04 * dice.gauss(0, 1), sealed),
            }
        )
    return made


def compared(
    made: Rounds, device: Target = "cuda", correction_ms: float = 0.0, short: bool = False
) -> ClockDecision:
    """What follows from the clocks of these rounds."""
    corrections = dict.fromkeys(("single", "queued"), correction_ms)
    return decide_clocks(measure_clocks(made, "candidate", "base", corrections), device, short)  # type: ignore[arg-type]


def proven(made: Rounds, hidden_ms: float = 0.0, queued_hidden_ms: float | None = None) -> Rounds:
    """The same rounds, where the end of sealed calls is proven to a microsecond, and with bursts of eight calls.

    `hidden_ms` of each call of the candidate are not on its own clock.
    """
    dice = random.Random(4)
    for name, samples in made.samples.items():
        hidden = hidden_ms if name == "candidate" else 0.0
        single = hidden if queued_hidden_ms is None or name != "candidate" else queued_hidden_ms
        own = made.median_ms(name)
        made.samples[name] = [
            replace(s, wall_ms=s.own_ms + single + 0.15 + 0.001 * dice.gauss(0, 1), proven=True)
            if s.sealed
            else s
            for s in samples
        ] + [
            Sample(own, 8 * (own + hidden) + 0.15 + 0.001 * dice.gauss(0, 1), True, calls=8, proven=True)
            for _ in range(16)
        ]
    return made


def with_bursts(made: Rounds, ms: float) -> Rounds:
    """The same rounds, with bursts whose end is not proven, of calls of so many milliseconds."""
    dice = random.Random(5)
    for name, samples in made.samples.items():
        own = made.median_ms(name)
        took = ms if name == "candidate" else own
        samples += [
            Sample(own, 8 * took + 0.5 + 0.02 * dice.gauss(0, 1), sealed=True, calls=8) for _ in range(16)
        ]
    return made


def with_queued(made: Rounds, candidate_ms: float, baseline_ms: float, hidden_ms: float = 0.0) -> Rounds:
    """The same rounds, with other times where calls were launched before their inputs were there."""
    dice = random.Random(2)
    for name, ms, extra in (("candidate", candidate_ms, hidden_ms), ("base", baseline_ms, 0.0)):
        for index, sample in enumerate(made.samples[name]):
            if sample.sealed:
                own = ms * (1 + 0.005 * dice.gauss(0, 1))
                made.samples[name][index] = Sample(
                    own, own + extra + 0.5 + 0.04 * dice.gauss(0, 1), sealed=True
                )
    return made


def judged(made: Rounds) -> Interval:
    found = compared(made, short=True)
    assert not found.lie
    charges = (found.charge_ms, found.certain_charge_ms) if found.inconclusive else ()
    return speedup(made, "base", "candidate", {}, found.widen_ms, GPU, *charges)


def test_a_win_over_a_baselines_host_is_none() -> None:
    """torch.compile's kernel takes as long as the candidate's; single calls of it wait for its host."""
    made = with_queued(rounds(0.19, 0.27), 0.186, 0.187)
    assert made.kinds == ("single", "queued") and made.deciding_kind("base", "candidate") == "queued"
    assert ratio_interval(made.log_ratio("base", "candidate", "single"), GPU).low > 1.35
    found = judged(proven(made))
    assert above_one(found) == "unclear" and found.high - found.low < 0.03


def test_a_baseline_that_was_not_beside_the_candidate_is_linked_by_the_steadier_calls() -> None:
    """The anchor's host is slower in the candidate's rounds than it was among baselines; eager takes 0.441 ms and shows it."""
    made = with_queued(rounds(0.137, 0.30), 0.137, 0.20)
    before = with_queued(rounds(0.441, 0.22), 0.440, 0.20)  # eager in the candidate's place
    links = {kind: -before.log_link("base", "candidate", kind) for kind in before.kinds}
    found = compared(proven(made), short=True)
    links["burst"] = links["queued"]
    over_eager = speedup(made, "base", "candidate", links, found.widen_ms, GPU)
    assert (
        over_eager.value == pytest.approx(0.44 / 0.137, rel=0.01)
        and over_eager.high - over_eager.low < 0.05 * over_eager.value
    )


def test_a_loss_in_single_calls_stays_one() -> None:
    made = with_queued(rounds(0.3, 0.2), 0.1, 0.19)
    assert made.deciding_kind("base", "candidate") == "single" and above_one(judged(proven(made))) == "no"


@pytest.mark.parametrize("claimed", [0.186, 0.183, 0.178])
def test_what_a_proof_shows_beyond_the_clock_is_counted(claimed: float) -> None:
    """A kernel as fast as the baseline that claims a little less, whatever its single calls show."""
    made = proven(with_queued(rounds(0.18, 0.27), claimed, 0.187), hidden_ms=0.187 - claimed)
    found = judged(made)
    assert found.low <= 1 <= found.high and found.high - found.low < 0.03
    assert found.value == pytest.approx(1.0, abs=0.006)


def test_who_hides_in_bursts_alone_or_in_other_calls_alone_wins_nothing() -> None:
    for bursts, queued in ((0.0, 0.006), (0.006, 0.0)):
        made = with_queued(rounds(0.18, 0.27), 0.181, 0.187)
        made = proven(made, hidden_ms=bursts, queued_hidden_ms=queued)
        if not bursts:  # honest there: its clock shows what it takes
            made.samples["candidate"] = [
                replace(s, own_ms=0.187, wall_ms=s.wall_ms + 0.048) if s.calls > 1 else s
                for s in made.samples["candidate"]
            ]
        assert judged(made).low <= 1


def test_a_clock_that_hides_much_is_a_lie() -> None:
    assert "back-to-back calls" in compared(proven(rounds(0.15, 0.2), 0.03, 0.0), short=True).lie
    assert "launched ahead" in compared(proven(rounds(0.15, 0.2), 0.0, 0.03), short=True).lie
    found = compared(with_queued(rounds(0.19, 0.27), 0.05, 0.187, hidden_ms=0.137))
    assert "when the inputs are written only after" in found.lie


def test_a_lie_that_a_busy_host_explains_is_charged() -> None:
    lying = compared(proven(rounds(0.15, 0.2), 0.03, 0.0), short=True)
    assert not is_excused(lying, lambda: False)
    assert is_excused(lying, lambda: True) and lying.charged_ms > 0.029
    honest = compared(proven(rounds(0.2, 0.2), 0.0, 0.0), short=True)
    assert not is_excused(honest, lambda: True)


def test_where_the_end_of_calls_is_proven_identical_code_has_a_narrow_interval() -> None:
    found = judged(proven(rounds(0.2, 0.2, noise=0.003)))
    assert found.low <= 1 <= found.high and found.high - found.low < 0.02


def filled(made: Rounds, **filling_ms: float) -> Rounds:
    """The same rounds, where writing inputs took so long, within the parent's clock."""
    for name, ms in filling_ms.items():
        made.samples[name] = [
            replace(s, wall_ms=s.wall_ms + ms, input_write_ms=ms) if s.sealed else s
            for s in made.samples[name]
        ]
    return made


def test_who_holds_up_a_baseline_convicts_no_candidate_and_hides_none() -> None:
    """A process that waits may have the device for 2 ms while inputs are written that take 0.1 ms."""
    assert not compared(filled(rounds(0.2, 0.3), candidate=0.1, base=0.1)).lie
    assert not compared(filled(rounds(0.2, 0.3), candidate=0.1, base=2.1)).lie
    assert (
        "only after the clock"
        in compared(filled(rounds(0.2, 0.3, sealed_ms=0.5), candidate=0.1, base=2.1)).lie
    )


def test_a_candidate_that_has_the_device_while_its_inputs_are_written_is_not_believed() -> None:
    made = filled(rounds(0.2, 0.3), candidate=2.1, base=0.1)
    assert has_head_start(made, "candidate", "base", {}) and "only after the clock" in compared(made).lie
    assert not has_head_start(filled(rounds(0.2, 0.3), candidate=0.11, base=0.1), "candidate", "base", {})
    both = filled(rounds(0.2, 0.3), candidate=2.1, base=2.1)  # what it left running holds up the baseline too
    both.usual_input_write_ms = 0.1
    assert has_head_start(both, "candidate", "base", {}) and "only after the clock" in compared(both).lie


@pytest.mark.parametrize(
    ("usual_ms", "took_ms", "disturbed"),
    [(3.06, 3.15, False), (3.06, 3.20, True), (0.1, 0.14, False), (0.1, 0.16, True), (12.0, 12.14, True)],
)
def test_writing_that_takes_longer_by_less_than_a_switch_was_not_disturbed(
    usual_ms: float, took_ms: float, disturbed: bool
) -> None:
    made = filled(proven(rounds(3.0, 3.0)), candidate=took_ms, base=usual_ms)
    assert has_head_start(made, "candidate", "base", {}) is disturbed


def test_where_no_call_is_sealed_clocks_are_compared_all_the_same() -> None:
    made = rounds(0.2, 0.3)
    made.samples = {
        name: [replace(sample, sealed=False) for sample in samples] for name, samples in made.samples.items()
    }
    assert made.kinds == ("single",) and not compared(made, device="cpu").lie


def test_a_baseline_that_was_slowed_beside_the_candidate_counts_at_its_best() -> None:
    found = Interval(8.0, 5.0, 9.0)
    assert (
        adjust_for_interference(found, 0.5, 1.0)
        == adjust_for_interference(found, 0.5, 1.2)
        == Interval(4.0, 2.5, 9.0)
    )
    assert adjust_for_interference(found, 0.99, 1.0) == adjust_for_interference(found, 2.0, 1.0) == found


def test_a_baseline_that_was_held_back_counts_as_launched_ahead_however_little_that_changes() -> None:
    """A host of 4 % of the baseline's time, and a candidate as fast as it on the device that cannot be launched ahead."""
    made = with_queued(rounds(0.187, 0.195), 0.187, 0.195)
    made = proven(made)
    assert above_one(judged(made)) == "yes"
    made.solo["base"] = [Sample(0.187, 0.6, sealed=True), Sample(0.195, 0.6, sealed=False)] * 5
    assert above_one(judged(made)) == "yes", "as much is noise among those that are launched alike"
    made.denied_prelaunch = frozenset({"base"})
    assert above_one(judged(made)) == "unclear"


def test_what_slows_both_down_alike_is_no_difference() -> None:
    found = Interval(1.0, 0.99, 1.01)
    assert adjust_for_interference(found, 0.9, 0.91) == found
    assert adjust_for_interference(found, 0.4, 0.8).value == 0.5
    both = rounds(1.0, 1.0)
    assert solo_share(both, "candidate", "single") == 1
    both.solo["candidate"] = [Sample(0.25, 1.0, sealed=False)] * 3
    assert solo_share(both, "candidate", "single") == 1, "by the parent's clock it takes as long as ever"
    assert solo_share(both, "candidate", "single", trusted=True) == pytest.approx(0.25, rel=0.05)
    assert solo_share(both, "candidate", "queued", trusted=True) == 1, "not known"
    both.solo["candidate"] = [Sample(0.25, 0.65, sealed=False)] * 3
    assert solo_share(both, "candidate", "single") == pytest.approx(0.25, rel=0.05)


def test_a_baseline_is_timed_again_where_that_makes_a_difference() -> None:
    before = with_queued(rounds(0.19, 0.20), 0.186, 0.187)
    cold, slowed = with_queued(rounds(0.19, 0.27), 0.186, 0.187), with_queued(rounds(0.19, 0.27), 0.186, 0.25)
    assert not was_slowed(cold, before, "base", "candidate"), "its host was, and queued calls decide"
    assert was_slowed(slowed, before, "base", "candidate")
    slow_host = with_queued(rounds(0.30, 0.15), 0.155, 0.187)
    assert was_slowed(with_queued(rounds(0.30, 0.36), 0.155, 0.187), slow_host, "base", "candidate"), (
        "in single calls only"
    )


def test_the_time_shown_stands_in_the_ratio_that_counts() -> None:
    twin, slow_host = with_queued(rounds(0.20, 0.27), 0.19, 0.19), with_queued(rounds(0.20, 0.27), 0.10, 0.19)
    assert comparable_time(twin, "base", "candidate").value == pytest.approx(0.19, rel=0.02)
    assert comparable_time(slow_host, "base", "candidate").value == pytest.approx(
        0.19 * 0.20 / 0.27, rel=0.02
    )


def test_rounds_go_on_until_the_ratio_is_settled() -> None:
    assert not Rounds().is_settled("base", "candidate")
    assert not rounds(1.0, 2.0).is_settled("base", "candidate")
    quiet = Rounds()
    for _ in range(20):
        quiet.add({"base": Sample(2.0, 3.0, sealed=False), "candidate": Sample(1.0, 2.0, sealed=False)})
    assert quiet.is_settled("base", "candidate")


@pytest.mark.parametrize(("ratio", "enough"), [(1.0, False), (1.03, False), (1.08, True), (0.9, True)])
def test_rounds_of_what_is_clearly_faster_or_slower_end_sooner(ratio: float, enough: bool) -> None:
    """Seven of a thousand is too wide an interval only where one may ask which is the faster."""
    some = Rounds()
    for number in range(200):
        own = 1.0 + 0.0035 * (-1) ** number
        some.add({"base": Sample(ratio, 3.0, sealed=False), "candidate": Sample(own, 2.0, sealed=False)})
    assert some.is_settled("base", "candidate") == enough


def test_a_ratio_has_an_interval_that_holds_the_truth() -> None:
    found = ratio_interval(rounds(1.0, 2.0).log_ratio("base", "candidate"), GPU)
    assert found.low < 2.0 < found.high and found.high - found.low < 0.08


@pytest.mark.parametrize(
    ("eager", "compiled", "expected"),
    [
        ((1.13, 0.75, 1.84), (1.28, 1.09, 1.30), "unclear"),  # a kernel on an H200 that was called faster
        ((1.13, 1.01, 1.84), (1.28, 1.09, 1.30), "yes"),
        ((1.13, 1.01, 1.84), (0.90, 0.85, 0.95), "no"),
    ],
)
def test_faster_means_faster_than_every_baseline(
    eager: tuple[float, float, float], compiled: tuple[float, float, float], expected: str
) -> None:
    assert faster_than_all({"eager_tf32": Interval(*eager), "compile": Interval(*compiled)}) == expected


def test_a_against_a_is_unclear() -> None:
    assert above_one(ratio_interval(rounds(1.0, 1.0).log_ratio("base", "candidate"), GPU)) == "unclear"
    assert above_one(Interval(1.2, 1.1, 1.3)) == "yes"
    assert above_one(Interval(0.8, 0.7, 0.9)) == "no"


def test_honest_clocks_agree() -> None:
    found = compared(rounds(1.0, 2.0))
    assert found.lie == "" and found.charged_ms < 0.01 and found.max_widen_ms < 0.02


def test_a_costly_baseline_is_no_hiding_place() -> None:
    """0.1 ms that the baseline's protocol costs beyond the leanest one is not given to the candidate."""
    assert not compared(rounds(0.5, 2.0)).lie
    assert compared(rounds(0.5, 2.0), correction_ms=0.1).lie


def test_time_outside_the_candidates_clock_is_a_lie() -> None:
    assert "by the judge's clock its output is complete" in compared(rounds(0.1, 2.0, hidden_ms=1.0)).lie
    assert compared(rounds(0.5, 2.0, hidden_ms=0.1)).lie


def test_work_done_before_the_clock_shows_in_sealed_rounds() -> None:
    assert (
        "when the inputs are written only after the clock has started"
        in compared(rounds(0.1, 2.0, sealed_ms=1.0)).lie
    )


def test_what_the_clock_cannot_resolve_widens_the_interval() -> None:
    assert compared(rounds(0.01, 0.03)).max_widen_ms > 0
    assert widen(Interval(3.0, 2.9, 3.1), 0.01, 0.02, GPU).low < 1
    assert compared(rounds(5.0, 9.0, noise=0.001)).max_widen_ms == 0


def test_hidden_time_within_the_slack_still_counts() -> None:
    """25 us of a 0.2 ms kernel convict nobody, but they are not given away either."""
    found = compared(rounds(0.2, 2.0, hidden_ms=0.03))
    assert not found.lie and found.max_widen_ms > 0.015


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    ceilings = Ceilings(
        bandwidth=1e12, cached_bandwidth=4e12, cache_bytes=1 << 20, rates={"fp32": 1e13, "tf32": 1e14}
    )
    moving = Work(read_bytes=10**9, written_bytes=10**9, matrix_flops=0)
    assert floor_ms(moving, ceilings, "tf32") == 2.0
    assert 0.8 < impossible_ms(moving, ceilings, "cuda") < 2.0
    counting = Work(10**6, 10**6, 1e12)
    assert floor_ms(counting, ceilings, "fp32") == 100.0 and floor_ms(counting, ceilings, "tf32") == 10.0
    assert impossible_ms(counting, ceilings, "cuda") < 0.01, "algebra may need no products"
    assert reference_operations_ms(counting, ceilings, "tf32") == 2.5


def test_each_type_has_the_floor_of_its_own_unit() -> None:
    units = {
        (device, dtype): physics.compute_unit(device, "native", dtype)
        for device in ("cuda", "cpu")
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    }
    assert list(units.values()) == ["fp64", "fp16", "bf16", "fp64", "fp32", "fp32"]
    assert (
        physics.compute_unit("cuda", "tf32", torch.float32) == "tf32"
        and physics.compute_unit("cpu", "tf32", torch.float32) == "fp32"
    )
    ceilings = Ceilings(1e12, 4e12, 1 << 20, {"fp32": 5e13, "tf32": 4e14, "bf16": 8e14, "fp64": 5e13})
    product = Work(10**6, 10**6, 1e12)
    assert floor_ms(product, ceilings, "fp64") == 20.0, "and not the 1.25 ms of bfloat16"
    assert reference_operations_ms(product, ceilings, "fp64") == reference_operations_ms(
        product, ceilings, "bf16"
    )


def test_a_unit_that_the_kept_ceilings_lack_is_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = Ceilings(1e30, 2e30, 1 << 20, {"fp32": 1e8})
    assert 0 < physics.load_ceilings("cpu", "here", "fp32").loop_share <= 1
    [cache] = tmp_path.rglob("ceilings-*.json")
    cache.write_text(json.dumps(asdict(old)))  # as an earlier version left it
    found = physics.load_ceilings("cpu", "here", "fp64")
    assert replace(found, rates={"fp32": found.rates["fp32"]}) == old and 1e8 < found.rates["fp64"] < 1e14
    cache.write_text(json.dumps(asdict(replace(old, rates={"fp32": 1e30}))))
    assert physics.load_ceilings("cpu", "here", "fp64").rates["fp64"] == 5e29, (
        "half of float32's at least, whatever the load just now"
    )
    cache.write_text(json.dumps(asdict(found)))
    assert (
        physics.load_ceilings("cpu", "here", "fp32") == physics.load_ceilings("cpu", "here", "fp64") == found
    )
    os.utime(cache, (0, 0))
    assert physics.load_ceilings("cpu", "here", "fp32").rates["fp64"] == found.rates["fp64"], (
        "measured anew, the rest stands"
    )


def test_bursts_show_what_a_single_call_cannot() -> None:
    """A kernel of 5 us by its own clock that takes 40: far below what one round trip resolves."""
    assert compared(with_bursts(rounds(0.005, 0.04), 0.005), short=True).lie == ""
    assert "back-to-back calls" in compared(with_bursts(rounds(0.005, 0.04), 0.045), short=True).lie


def test_without_proof_a_short_kernel_stays_in_doubt() -> None:
    assert compared(rounds(0.2, 0.4), short=True).max_widen_ms >= 0.1
    assert 0.0125 <= compared(with_bursts(rounds(0.2, 0.4), 0.2), short=True).max_widen_ms < 0.03
    assert compared(proven(rounds(0.2, 0.4)), short=True).max_widen_ms < 0.001


def test_without_bursts_what_differs_from_process_to_process_is_counted_and_convicts_nobody() -> None:
    found = compared(rounds(0.3, 0.6, hidden_ms=0.09), short=True)
    assert found.lie == "" and found.inconclusive and found.charged_ms == pytest.approx(0.09, abs=0.02)


def test_a_head_start_in_most_calls_is_counted_whatever_bursts_say() -> None:
    made, dice = rounds(0.03, 0.25), random.Random(3)
    made.samples["candidate"] = [
        replace(sample, wall_ms=sample.wall_ms + (0.3 if sample.sealed and dice.random() < 0.75 else 0.0))
        for sample in made.samples["candidate"]
    ]
    found = compared(with_bursts(made, 0.03), short=True)
    assert found.lie or (found.inconclusive and found.charged_ms > 0.2)


def test_what_differs_from_process_to_process_convicts_no_short_kernel() -> None:
    assert compared(proven(rounds(0.07, 0.3, hidden_ms=0.08)), short=True).lie == ""
    assert compared(proven(rounds(0.07, 0.3, hidden_ms=0.2)), short=True).lie
    polls = with_bursts(rounds(0.07, 0.3, sealed_ms=0.08), 0.07)
    assert "written only after" in compared(polls, short=True).lie


def test_what_bursts_show_beyond_processes_is_counted_and_convicts_only_where_it_is_much() -> None:
    longer, far = (compared(with_bursts(rounds(0.29, 0.4), ms), short=True) for ms in (0.335, 0.45))
    assert not longer.lie and longer.inconclusive and longer.charged_ms == pytest.approx(0.045, abs=0.005)
    assert "back-to-back calls" in far.lie
    alike = compared(with_bursts(rounds(0.29, 0.4), 0.30), short=True)
    assert not alike.lie and not alike.inconclusive and alike.charged_ms == 0


@pytest.mark.parametrize(
    ("hidden", "lie", "slight"), [(0.01, False, True), (0.12, True, True), (0.4, True, False)]
)
def test_on_a_cpu_a_tenth_of_a_millisecond_convicts_nobody(hidden: float, lie: bool, slight: bool) -> None:
    found = compared(rounds(0.5, 2.0, hidden_ms=hidden), device="cpu")
    assert bool(found.lie) == lie and found.within_spinning == slight
    assert not compared(rounds(0.5, 2.0, hidden_ms=hidden)).within_spinning


def test_a_clock_that_skims_a_little_wins_nothing_on_a_cpu() -> None:
    made = rounds(2.0, 2.1, hidden_ms=0.1, noise=0.005)
    found = compared(made, device="cpu")
    assert not found.lie and 0.08 < found.max_widen_ms < 0.12
    speedup = ratio_interval(made.log_ratio("base", "candidate"), GPU)
    assert (
        above_one(speedup) == "yes"
        and above_one(widen(speedup, found.statistics.deciding_ms, found.max_widen_ms, GPU)) == "unclear"
    )


def test_what_a_busy_machine_hides_is_counted() -> None:
    assert charge(Interval(4.0, 3.6, 4.4), 1.0, 3.0) == Interval(1.0, 0.9, 4.4)
    assert charge(Interval(4.0, 3.6, 4.4), 1.0, 3.0, certain_ms=1.0) == Interval(1.0, 0.9, 2.2)
