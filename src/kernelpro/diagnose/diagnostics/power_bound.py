"""Power limit: the board lowers the clock, and only less energy per call makes it faster."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.diagnostic import MEDIUM, Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.records import Evidence

CAPPED = 0.2
NEAR_LIMIT = 0.95
"""Share of the power limit from which a reduced clock is attributed to power."""
REDUCED = 0.97
_RECOVERABLE = 0.3
"""Share of the lost clock that a more efficient kernel may recover: power grows with about the cube of the
clock, so 10 % less energy per call allows about 3 % more clock."""
_MAX_SAVED = 1 - 1 / MEDIUM - 0.005
"""A hint, not a defect: always of low severity."""


def _analyze(context: DiagnosticContext) -> Match | None:
    power = context.profile.power
    if power is None:
        raise MissingData("power under sustained load")
    watts, limit, capped = power.watts or 0.0, power.limit_watts or 0.0, power.capped or 0.0
    clock, fastest = power.sm_mhz or 0.0, power.max_sm_mhz or 0.0
    at_limit = capped >= CAPPED or (limit > 0 and watts >= NEAR_LIMIT * limit)
    if not at_limit or not 0 < clock < REDUCED * fastest:
        return None
    lost = 1 - clock / fastest
    return Match(
        evidence=(
            Evidence("mean power", round(watts), round(limit), "W"),
            Evidence("SM clock", round(clock), round(fastest), "MHz"),
            percent("samples under a power cap", capped, CAPPED),
        ),
        cause=f"the SMs run at {clock:.0f} instead of {fastest:.0f} MHz, power-capped in {capped:.0%} of the "
        "samples",
        saved_share=min(_MAX_SAVED, _RECOVERABLE * lost),
        basis=f"the clock is {lost:.0%} below its maximum, of which a more efficient kernel may recover "
        "about a third",
    )


DIAGNOSTIC = Diagnostic(
    name="power_bound",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger=f"{CAPPED:.0%} of the samples under a power cap or {NEAR_LIMIT:.0%} of the power limit drawn, "
    f"with SM clocks below {REDUCED:.0%} of their maximum",
    remedy="fewer bytes, more efficient instructions",
    gain_basis="a third of the lost clock; always of low severity",
    advice=(
        "move fewer bytes: more reuse in registers and shared memory; a byte from DRAM costs more energy "
        "than the operation on it",
        "use more efficient instructions: tensor cores in a narrower type, wgmma instead of mma.sync, packed "
        "halves",
        "compare candidates at the same power: a short measurement on a cool device flatters",
    ),
    claims=("matrix_instructions", "arithmetic", *WAITING_PARTS),
)
