"""The board's power limit holds the clocks down: only less energy for a call makes it faster."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import MEDIUM, Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

_CAPPED = 0.2
_NEAR = 0.95
"""Watts of the limit from which on clocks that are down are down for power."""
_DOWN = 0.97
_PART = 0.3
"""Part of the lost clock that a leaner kernel may win back: power grows with about the cube of the clock, so a tenth less
energy for a call allows about 3 % more clock."""
_CEILING = 1 - 1 / MEDIUM - 0.005
"""A hint, not a defect: always of low severity."""


def look(scene: DiagnosticContext) -> Match | None:
    power = scene.profile.power
    if not power:
        raise MissingData("power in a sustained loop")
    watts, limit = power.get("watts", 0.0), power.get("limit_watts", 0.0)
    clock, fastest = power.get("sm_mhz", 0.0), power.get("max_sm_mhz", 0.0)
    capped = power.get("capped", 0.0)
    down = fastest > 0 and 0 < clock < _DOWN * fastest
    if not (capped >= _CAPPED or (limit > 0 and watts >= _NEAR * limit)) or not down:
        return None
    lost = 1 - clock / fastest
    return Match(
        (
            Evidence("power drawn, on average", round(watts), round(limit), "W"),
            Evidence("clock of the SMs", round(clock), round(fastest), "MHz"),
            Evidence("samples under a power cap", round(100 * capped), 100 * _CAPPED, "%"),
        ),
        f"the SMs run at {clock:.0f} instead of {fastest:.0f} MHz, held down for power in {capped:.0%} of the samples",
        (
            (
                "move fewer bytes: more reuse in registers and shared memory, "
                "since a byte from DRAM costs more energy than the operation on it"
            ),
            (
                "use instructions that do more for their energy: tensor cores in a "
                "narrower type where allowed, wgmma instead of mma.sync, packed halves"
            ),
            "compare candidates at the same power: a short measurement on a cool device flatters",
        ),
        min(_CEILING, _PART * lost),
        f"clocks are {lost:.0%} below their maximum, of which a leaner kernel may win back about a third",
    )


DIAGNOSTIC = Diagnostic(
    name="power_bound",
    level="system",
    target="cuda",
    analyze=look,
    trigger=(
        f"{_CAPPED:.0%} of the samples under a power cap or {_NEAR:.0%} of "
        f"the limit drawn, with SM clocks below {_DOWN:.0%} of their maximum"
    ),
    remedy="fewer bytes, leaner instructions",
    gain_basis="a third of the lost clock; always of low severity",
)
