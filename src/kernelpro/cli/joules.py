"""`kernelpro energy`, and the line that tells of a verdict's."""

from __future__ import annotations

import sys
from typing import Any

from kernelpro.pools import local
from kernelpro.records import BadInput, Energy, EnergyData, Job
from kernelpro.records.energy import format_joules, format_ratio


def calibrate(target: Any, json_lines: bool) -> int:
    """0: there is a counter and this is what it can do; 1: there is none, and why."""
    with local.Pool("auto") as pool:
        answered = pool.ask(Job("energy", "energy", target=target))
    found = answered.data
    if not isinstance(found, EnergyData):
        raise BadInput(answered.error or "the worker gave no answer")
    if json_lines:
        print(found.dumps())
    elif found.error:
        print(f"no energy for target {found.target}: {found.error}", file=sys.stderr)
    else:
        print(as_text(found))
    return 1 if found.error else 0


def as_text(found: EnergyData) -> str:
    """The calibration as a table of six lines."""
    rest, load, control = found.idle, found.load, found.control
    assert rest and load and control
    latency = f"{found.latency_s:.2f} s" if found.latency_s is not None else "not seen"
    clocks = ", ".join(
        f"{name} {value:.0f}"
        for name, value in (("SM MHz", load.sm_mhz), ("C", load.temperature_c))
        if value is not None
    )
    return "\n".join(
        (
            f"counter       {found.counter}; a reading takes {found.read_us:.0f} us",
            f"step          {1e3 * load.step_s:.1f} ms give or take {1e3 * load.step_jitter_s:.1f}, "
            f"{format_joules(load.step_joules)} under load; "
            f"{1e3 * rest.step_s:.1f} ms, {format_joules(rest.step_joules)} at rest",
            f"power         {rest.watts:.0f} W at rest, {load.watts:.0f} W under load"
            + (f" ({clocks})" if clocks else ""),
            f"latency       {latency} from the beginning of a load until the counter shows it",
            f"windows       {found.window_s:.1f} s, from step to step: "
            f"quantization error at most {found.quantization:.2%}",
            f"repeatability {found.windows} windows of the same load: spread {found.spread:.2%}, from least to most "
            f"{found.range:.2%}; against itself {control.value:.4f} [{control.low:.4f}, {control.high:.4f}]",
        )
    )


def line(energy: Energy) -> str:
    """One line: what a call costs, or why that is not told."""
    if energy.unavailable:
        return f"not told: {energy.unavailable}"
    ratio, joules, watts = energy.ratio["energy"], energy.joules, energy.watts
    limit = ", the board's limit, where energy is time" if energy.is_power_limited else ""
    word = {"yes": "less than", "no": "more than", "unclear": "not clearly different from"}[
        energy.lower or "unclear"
    ]
    return (
        f"{format_joules(joules['candidate'].value)} a call at {watts['candidate'].value:.0f} W{limit}, {word} {energy.baseline} "
        f"({format_ratio(ratio)} of its {format_joules(joules[energy.baseline].value)} at {watts[energy.baseline].value:.0f} W); "
        f"energy-delay {format_ratio(energy.ratio['edp'])}; idle {energy.idle_watts['before']:.0f} W"
    )
