"""The memory plan: what fits is used, comfort goes before checks, and what cannot fit is the task's fault."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from kernelpro.lab.measure.memory_plan import (
    GB,
    MAX_SLICES,
    Layout,
    MemoryPlan,
    Shortage,
    TaskSizes,
    plan_memory,
)
from kernelpro.records import BadInput

pytestmark = pytest.mark.together
FLUSH = 120 << 20
FIXED_GB = 3.0
"""Three processes, the flusher and scratch memory."""


def sizes(inputs: float, outputs: float, parameters: float = 0.0, temporary: float = 0.0) -> TaskSizes:
    """A float32 task, in GB."""
    peak = inputs + outputs + parameters + temporary
    exact_call = 2 * (peak - parameters)
    return TaskSizes(*(int(value * GB) for value in (inputs, outputs, parameters, peak, exact_call)))


def plan(
    task: TaskSizes,
    free: float,
    sliceable: bool = True,
    failures: int = 0,
    target: Literal["cuda", "cpu"] = "cuda",
    candidate: float = 0.0,
) -> MemoryPlan:
    shortage = Shortage(failures, int(candidate * GB))
    return plan_memory("t", task, int(free * GB), target, FLUSH, sliceable, shortage)


def test_small_tasks_give_up_nothing() -> None:
    result = plan(sizes(0.13, 0.07), 24)
    assert result.layout == Layout(16, 8) and result.burst_calls == 16 and result.given_up == ""
    assert result.cache_bytes > 3 * GB


def test_on_a_cpu_small_tensors_lie_at_several_addresses() -> None:
    small, large = sizes(0.03, 0.03), sizes(0.05, 0.05)
    assert plan(small, 24, target="cpu").layout == Layout(8, 8)
    assert plan(small, 24, target="cpu").retained_bytes == 2 * 7 * small.outputs
    assert plan(large, 24, target="cpu").layout == Layout(2, 1)


def test_the_largest_problems_fit_an_h200_in_float64_at_once() -> None:
    rms_norm = plan(sizes(7.52, 7.52, temporary=0.12), 139)
    assert rms_norm.layout.slices == 1 and rms_norm.layout.exact and not rms_norm.layout.takes_turns
    assert rms_norm.candidate_bytes > 2 * 7.52 * GB


def test_comfort_is_given_up_in_order() -> None:
    task = sizes(4.3, 4.3)
    layouts = [plan(task, free).layout for free in range(140, 22, -2)]
    for roomy, tight in itertools.pairwise(layouts):
        assert tight.candidate_sets <= roomy.candidate_sets
        assert tight.takes_turns >= roomy.takes_turns and tight.exact <= roomy.exact
    assert layouts[0].slices == 1 and layouts[-1].slices > 1 and layouts[-1].takes_turns
    assert all(layout.exact for layout in layouts), "slices come before the task's own type"


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("sliceable", [True, False])
def test_whatever_fits_twice_is_judged(target: Literal["cuda", "cpu"], sliceable: bool) -> None:
    shares = [(1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.05, 0.95, 0.0), (0.3, 0.3, 0.4), (0.1, 0.0, 0.9)]
    for share, free in itertools.product(shares, (8, 16, 24, 40, 48, 80, 140)):
        peak = (free - FIXED_GB) / (2 + 2 * share[0] * (target == "cpu")) / 1.06
        result = plan(
            sizes(*(part * peak for part in share[:2]), temporary=share[2] * peak),
            free,
            sliceable,
            target=target,
        )
        assert result.candidate_bytes >= 0.94 * (1 - share[0]) * peak * GB, "as much as the reference"
        assert result.layout.slices <= (MAX_SLICES if sliceable else 1)


def test_a_task_that_does_not_fit_is_reported_with_figures() -> None:
    with pytest.raises(BadInput) as caught:
        plan(sizes(8.59, 8.59), 24)
    message = str(caught.value)
    assert "task t: judging it needs 3" in message and "24.0 GB of the device are free" in message
    assert "inputs 8.6 GB, outputs 8.6 GB, one call of the reference 17.2 GB" in message


def test_what_was_given_up_is_stated() -> None:
    tight = plan(sizes(4.3, 4.3), 24)
    assert tight.given_up.startswith(
        "only 24.0 GB of memory were free: candidate and baselines take turns in it, "
    )
    assert f"the oracle computes {tight.layout.slices} slices of the batch one by one" in tight.given_up
    unsliced = plan(sizes(4.3, 4.3), 24, sliceable=False)
    assert "the oracle runs in the task's own type" in unsliced.given_up
    assert unsliced.layout.frees_before_check and not tight.layout.frees_before_check


def test_a_plan_that_failed_is_followed_by_a_smaller_one() -> None:
    task = sizes(4.3, 4.3)
    first, second, third = (plan(task, 48, failures=count) for count in range(3))
    assert first.layout != second.layout and second.layout != third.layout
    assert third.layout.takes_turns and third.candidate_bytes > first.candidate_bytes


def test_large_weights_fit_if_one_call_and_two_copies_do() -> None:
    largest = sizes(0.1, 0.1, parameters=5.0)
    assert plan(largest, 5.2 * 2 + 5.0 + FIXED_GB + 1).layout.takes_turns
    roomy = plan(largest, 80)
    assert roomy.layout.exact and not roomy.layout.takes_turns
    assert roomy.candidate_bytes > 5.0 * GB, "the candidate's own parameters"


def test_a_candidate_that_needs_more_gets_the_plan_that_leaves_more() -> None:
    task = sizes(2.1, 2.2)
    first = plan(task, 20.8)
    assert first.candidate_bytes < 6.5 * GB < first.most_candidate_bytes
    second = plan(task, 20.8, candidate=6.5)
    assert second.candidate_bytes >= 6.5 * GB and second.most_candidate_bytes == first.most_candidate_bytes
    assert plan(task, 20.8, candidate=1e6).candidate_bytes == first.most_candidate_bytes


def test_bursts_are_as_long_as_memory_allows() -> None:
    calls = [plan(sizes(size, size), 80).burst_calls for size in (0.1, 0.5, 1, 2, 4, 8)]
    assert calls[0] == 16 and calls == sorted(calls, reverse=True) and 1 not in calls
    assert plan(sizes(0.1, 0.1), 80, target="cpu").burst_calls == 0


@pytest.mark.parametrize(("inputs", "outputs"), [(1.07, 3.22), (0.3, 5.0), (2.0, 2.0), (4.0, 0.1)])
def test_a_burst_fits_beside_everything_else(inputs: float, outputs: float) -> None:
    result = plan(sizes(inputs, outputs), 150)
    regions = (result.layout.candidate_sets + result.layout.baseline_sets + 1) * inputs
    kept = result.retained_bytes / GB + 2 * outputs  # in both children, with one more output each
    own = result.burst_calls * (inputs + outputs) + 2 * (inputs + outputs)  # the batch, and a float64 truth
    assert regions + kept + own + result.cache_bytes / GB + FIXED_GB <= 150
