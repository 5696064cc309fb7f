"""`kernelpro energy`, and the line that tells of a verdict's."""

from __future__ import annotations

import json
import sys
from typing import Any

from kernelpro.pools import local
from kernelpro.records import BadInput, Energy, Job
from kernelpro.records.energy import amount, portion


def calibrate(target: Any, json_lines: bool) -> int:
    """0: there is a counter and this is what it can do; 1: there is none, and why."""
    with local.Pool("auto") as pool:
        answered = pool.ask(Job("energy", "energy", target=target))
    if answered.data is None:
        raise BadInput(answered.error or "the worker gave no answer")
    found = answered.data
    if json_lines:
        print(json.dumps(found, separators=(",", ":")))
    elif "refused" in found:
        print(f"no energy for target {found['target']}: {found['refused']}", file=sys.stderr)
    else:
        print(as_text(found))
    return 1 if "refused" in found else 0


def as_text(found: dict[str, Any]) -> str:
    rest, load, control = found["rest"], found["load"], found["a_a"]
    latency = f"{found['latency_s']:.2f} s" if found["latency_s"] is not None else "not seen"
    clocks = ", ".join(
        f"{name} {load[key]:.0f}"
        for name, key in (("SM MHz", "sm_mhz"), ("C", "temperature_c"))
        if key in load
    )
    return "\n".join(
        (
            f"counter       {found['source']}; a reading takes {found['read_us']:.0f} us",
            f"step          {1e3 * load['step_s']:.1f} ms give or take {1e3 * load['step_jitter_s']:.1f}, "
            f"{amount(load['step_joules'])} under load; {1e3 * rest['step_s']:.1f} ms, {amount(rest['step_joules'])} at rest",
            f"power         {rest['watts']:.0f} W at rest, {load['watts']:.0f} W under load"
            + (f" ({clocks})" if clocks else ""),
            f"latency       {latency} from the beginning of a load until the counter shows it",
            f"windows       {found['window_s']:.1f} s, from step to step: quantisation at most {found['doubt']:.2%}",
            f"repeatability {found['windows']} windows of the same load: spread {found['spread']:.2%}, from least to most "
            f"{found['range']:.2%}; against itself {control['value']:.4f} [{control['low']:.4f}, {control['high']:.4f}]",
        )
    )


def line(energy: Energy) -> str:
    """One line: what a call costs, or why that is not told."""
    if energy.refused:
        return f"not told: {energy.refused}"
    ratio, joules, watts = energy.ratio["energy"], energy.joules, energy.watts
    limit = ", the board's limit, where energy is time" if energy.at_the_limit else ""
    word = {"yes": "less than", "no": "more than", "unclear": "not clearly different from"}[
        energy.less or "unclear"
    ]
    return (
        f"{amount(joules['candidate'].value)} a call at {watts['candidate'].value:.0f} W{limit}, {word} {energy.against} "
        f"({portion(ratio)} of its {amount(joules[energy.against].value)} at {watts[energy.against].value:.0f} W); "
        f"energy-delay {portion(energy.ratio['edp'])}; idle {energy.idle_watts['before']:.0f} W"
    )
