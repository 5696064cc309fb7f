"""The memory of a run: attempts by gain, errors with their fixes, facts, and a digest within its budget."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kernelpro.memory.run_memory import Attempt, Fact, MemoryEvent, NodeError, RunMemory

EVENTS: list[MemoryEvent] = [
    Attempt(
        1,
        0,
        "vectorise loads by 4",
        "loads are narrow",
        gain=1.5,
        expected_speedup=2.0,
        is_fresh=True,
        ms=0.25,
    ),
    Attempt(
        2, 1, "keep rows in registers", "memory is read twice", failure="build_failed: too many registers"
    ),
    NodeError(2, "k.cu(12): error: too many registers (300 used)"),
    Attempt(3, 2, "split a row over a warp", failure="crashed: misaligned address at 0x10"),
    NodeError(3, "CUDA error: misaligned address at 0x10"),
    Attempt(4, 3, "pad rows to 16 bytes", gain=2.0),
    Attempt(5, 1, "unroll by 8", "latency is exposed", gain=0.7, expected_speedup=1.5),
    Attempt(6, 1, "use two stages", gain=1.1),
    Attempt(7, 0, "keep the rows in registers", failure="build_failed: too many registers"),
    NodeError(7, "k.cu(99): error: too many registers (512 used)"),
    Fact("cp.async needs 16-byte aligned addresses", 4),
    Fact("CP.ASYNC needs  16-byte aligned addresses", 6),
    Fact("the copy alone takes 0.11 ms"),
]


def remembered(events: Iterable[MemoryEvent]) -> RunMemory:
    memory = RunMemory()
    for event in events:
        memory.add(event)
    return memory


def test_outcomes_come_best_gains_and_worst_failures_first() -> None:
    memory = remembered(EVENTS)
    under = memory.attempts_from(1)
    assert [a.node for a in under.gains] == [6] and [a.node for a in under.failures] == [2, 5]
    elsewhere = memory.attempts_elsewhere(1)
    assert [a.node for a in elsewhere.gains] == [4, 1] and [a.node for a in elsewhere.failures] == [3, 7]


def test_errors_recur_and_know_what_led_out_of_them() -> None:
    registers, misaligned = remembered(EVENTS).errors()
    assert registers.signature == "k.cu(N): error: too many registers (N used)" and registers.count == 2
    assert registers.example == EVENTS[9].message  # type: ignore[union-attr]
    assert registers.fix == "split a row over a warp"
    assert misaligned.count == 1 and misaligned.fix == "pad rows to 16 bytes"


def test_a_step_that_keeps_the_error_is_no_fix() -> None:
    message = "error: tile is undefined"
    events: list[MemoryEvent] = [
        Attempt(1, 0, "tile", failure="build_failed"),
        NodeError(1, message),
        Attempt(2, 1, "rename it", failure="build_failed"),
        NodeError(2, message),
        Attempt(3, 2, "declare it", gain=1.0),
    ]
    assert remembered(events[:4]).errors()[0].fix == ""
    assert remembered(events).errors()[0].fix == "declare it"


def test_facts_are_told_once_the_latest_first() -> None:
    assert [fact.text for fact in remembered(EVENTS).facts()] == [
        "the copy alone takes 0.11 ms",
        EVENTS[10].text,
    ]  # type: ignore[union-attr]


def test_the_last_word_on_a_node_counts() -> None:
    memory = remembered([*EVENTS, Attempt(6, 1, "use two stages", gain=0.9)])
    assert memory.attempts_from(1).gains == ()


def test_the_digest_says_it_in_words() -> None:
    text = remembered(EVENTS).digest(1, 1000)
    assert text == (
        "Tried from this kernel:\n"
        "- use two stages -> 1.10x as fast as step 1\n"
        "- keep rows in registers -> failed: build_failed: too many registers\n"
        "- unroll by 8 -> 0.70x as fast as step 1; expected 1.50x, refuted (latency is exposed)\n"
        "\n"
        "Errors seen, and what fixed them:\n"
        "- k.cu(99): error: too many registers (512 used) (2 times); fixed by: split a row over a warp\n"
        "- CUDA error: misaligned address at 0x10; fixed by: pad rows to 16 bytes\n"
        "\n"
        "What worked in other steps:\n"
        "- pad rows to 16 bytes -> 2.00x as fast as step 3\n"
        "\n"
        "Facts:\n"
        "- the copy alone takes 0.11 ms\n"
        "- cp.async needs 16-byte aligned addresses\n"
        "\n"
        "What did not work in other steps:\n"
        "- split a row over a warp -> failed: crashed: misaligned address at 0x10\n"
        "- keep the rows in registers -> failed: build_failed: too many registers"
    )


def test_a_fresh_design_is_told_by_its_time_and_its_lead_over_the_baselines() -> None:
    events: list[MemoryEvent] = [
        Attempt(1, 0, "one pass", "memory", gain=5.8, is_fresh=True, ms=0.1848),
        Attempt(2, 0, "two passes", gain=0.9, is_fresh=True, ms=1.2),
        Attempt(3, 1, "wider loads", gain=1.01, expected_speedup=1.3, ms=0.183),
    ]
    assert remembered(events).digest(9, 1000) == (
        "What worked in other steps:\n"
        "- one pass -> 0.1848 ms, 5.80x as fast as the best baseline\n"
        "\n"
        "What did not work in other steps:\n"
        "- two passes -> 1.2000 ms, 0.90x as fast as the best baseline\n"
        "- wider loads -> 0.1830 ms, 1.01x as fast as step 1; expected 1.30x, refuted"
    )


def test_the_digest_leaves_out_the_node_itself_and_what_is_told_elsewhere() -> None:
    text = remembered(EVENTS).digest(1, 1000, shown={4, 6})
    assert (
        "vectorise loads by 4" not in text
        and "use two stages" not in text
        and "pad rows to 16 bytes ->" not in text
    )
    assert "unroll by 8" in text and "split a row over a warp ->" in text


def test_a_promise_is_kept_by_half_of_its_logarithm() -> None:
    kept = [Attempt(2, 1, "m", gain=gain, expected_speedup=4.0).confirmed for gain in (2.1, 1.77)]
    assert kept == [True, False]
    assert (
        Attempt(2, 0, "m", gain=5.0, expected_speedup=4.0, is_fresh=True).confirmed is None
        and Attempt(2, 1, "m", gain=5.0).confirmed is None
    )


def test_equal_methods_share_a_line() -> None:
    events: list[MemoryEvent] = [Attempt(n, 1, f"unroll by {n}", gain=1 + n / 10) for n in range(2, 6)]
    assert (
        remembered(events).digest(1, 1000)
        == "Tried from this kernel:\n- unroll by 5 -> 1.50x as fast as step 1 (tried 4 times, 1.20x to 1.50x)"
    )


def test_the_digest_keeps_to_its_budget_and_the_most_valuable() -> None:
    methods = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    events: list[MemoryEvent] = list(EVENTS)
    for index in range(300):
        method = f"{methods[index % 10]} {methods[index // 10 % 10]} {methods[index // 100]} " + "words " * (
            index % 40
        )
        events.append(
            Attempt(100 + index, index % 3, method, gain=1 + index / 1000) if index % 2 else Fact(method)
        )
    events += [NodeError(8, "error: " + "very long " * 500), Fact("x" * 5000)]
    memory = remembered(events)
    for budget in (0, 5, 20, 50, 200, 1000, 5000):
        text = memory.digest(1, budget)
        assert len(text) <= 3.5 * budget and text == remembered(events).digest(1, budget)
    assert memory.digest(1, 0) == "" and memory.digest(1, 50).startswith("Tried from this kernel:\n- ")
    assert all(
        title in memory.digest(1, 1000)
        for title in ("Tried from this kernel", "Errors seen", "What worked in other steps", "Facts")
    )
    assert RunMemory().digest(1, 1000) == ""


def test_an_attempt_cannot_contradict_itself() -> None:
    with pytest.raises(ValueError, match="either a gain or a failure"):
        Attempt(1, 0, "both", gain=1.0, failure="crashed")
    with pytest.raises(ValueError, match="either a gain or a failure"):
        Attempt(1, 0, "neither")
