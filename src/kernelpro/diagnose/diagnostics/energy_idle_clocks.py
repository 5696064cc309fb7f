"""Idle at full clock: the device draws a fifth of its power limit while it waits."""

from __future__ import annotations

from kernelpro.diagnose.device_time import idle_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.diagnose.energy_model import static_watts
from kernelpro.records import Bound, Evidence

MIN_IDLE = 0.1
"""Share of a call."""
FULL_CLOCK = 0.8
"""Share of the maximum SM clock. Below, the driver has already lowered the clock."""


def _analyze(context: DiagnosticContext) -> Match | None:
    power, timeline = context.profile.power, context.timeline
    if power is None or not power.watts:
        raise MissingData("power under sustained load")
    # Consecutive calls hide the idle time around a single call.
    waiting = idle_us(context) if context.bound is Bound.LAUNCH else timeline.gaps_us
    idle = waiting / timeline.call_us if timeline.call_us > 0 else 0.0
    clock, fastest = power.sm_mhz or 0.0, power.max_sm_mhz or 0.0
    if idle < MIN_IDLE or not fastest or clock < FULL_CLOCK * fastest:
        return None
    static = static_watts(context)
    return Match(
        evidence=(
            percent("device idle share of a call", idle, MIN_IDLE),
            Evidence("SM clock meanwhile", round(clock), round(fastest), "MHz"),
            Evidence("mean power", round(power.watts), unit="W"),
        ),
        cause=f"the device idles {idle:.0%} of a call at {clock:.0f} MHz, and draws about {static:.0f} W "
        "meanwhile",
        saved_share=min(1.0, static / max(power.watts, static)) * idle,
        basis=f"{static:.0f} W of static power over the {idle:.0%} of a call in which nothing runs",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_idle_clocks",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger=f"the device idles for {MIN_IDLE:.0%} of a call (between its kernels; in class `launch` at any "
    f"time) while its SMs run at {FULL_CLOCK:.0%} of their maximum clock or more",
    remedy="no gaps: fusion, graphs, batches",
    gain_basis="static power over the idle share of a call",
    advice=(
        "avoid gaps: one fused kernel, a CUDA graph, no synchronization inside a call",
        "batch calls that arrive one by one: they share the energy of waiting",
        "ask the machine's operator for a lower clock limit if this is its only load; KernelPro never "
        "changes clocks",
    ),
    objective="energy",
)
