"""A device that waits at full clock: it takes a fifth of its power limit for doing nothing."""

from __future__ import annotations

from kernelpro.diagnose.device_time import idle_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.energy_model import static_watts
from kernelpro.records import Bound, Evidence

_IDLE = 0.1
"""Share of a call."""
_AWAKE = 0.8
"""Of the highest SM clock: below, the driver has taken the clock back by itself."""


def look(scene: DiagnosticContext) -> Match | None:
    power, line = scene.profile.power, scene.timeline
    if not power.get("watts"):
        raise MissingData("power in a sustained loop")
    waits = (
        idle_us(scene) if scene.bound is Bound.LAUNCH else line.gaps_us
    )  # calls in a row hide what a lone call waits for
    idle = waits / line.call_us if line.call_us > 0 else 0.0
    clock, fastest = power.get("sm_mhz", 0.0), power.get("max_sm_mhz", 0.0)
    if idle < _IDLE or not fastest or clock < _AWAKE * fastest:
        return None
    share = min(1.0, static_watts(scene) / max(power["watts"], static_watts(scene))) * idle
    return Match(
        evidence=(
            Evidence("time of a call in which the device does nothing", round(100 * idle), 100 * _IDLE, "%"),
            Evidence("clock of the SMs meanwhile", round(clock), round(fastest), "MHz"),
            Evidence("power drawn, on average", round(power["watts"])),
        ),
        cause=f"the device waits for {idle:.0%} of a call at {clock:.0f} MHz, and takes about {static_watts(scene):.0f} W for it",
        advice=(
            "hand the device its work without gaps: one fused kernel, a CUDA graph, no waiting inside a call",
            "where calls come one by one, batch them: the energy of waiting is shared",
            "ask whoever runs the machine for a lower clock limit if this is all it does; KernelPro never changes clocks",
        ),
        saved_share=share,
        basis=f"{static_watts(scene):.0f} W for being on, over the {idle:.0%} of a call in which nothing runs",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_idle_clocks",
    level="system",
    target="cuda",
    analyze=look,
    trigger=f"nothing runs on the device for {_IDLE:.0%} of a call (between its kernels; in the class `launch` at any time) while "
    f"its SMs are at {_AWAKE:.0%} of their highest clock or more",
    remedy="no gaps: fusion, graphs, batches",
    gain_basis="the power for being on, over the idle share of a call",
    objective="energy",
)
