"""The call already moves its bytes about as fast as memory allows: only fewer bytes help."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Bound, Evidence

_NEAR = 1.2
"""Times the floor. A copy, which the bandwidth is measured with, is itself not reached more closely by most kernels."""


def look(scene: DiagnosticContext) -> Match | None:
    profile = scene.profile
    bandwidth = profile.ceilings.get("bandwidth", 0.0)
    if not bandwidth or profile.time_ms <= 0:
        raise MissingData("the bandwidth of this machine")
    nbytes = profile.work["read_bytes"] + profile.work["written_bytes"]
    least = 1e3 * nbytes / bandwidth
    if least < 0.95 * profile.floor_ms or profile.time_ms > _NEAR * least:
        return None
    reached = nbytes / (1e-3 * profile.time_ms)
    return Match(
        evidence=(
            Evidence("bytes that must move, over the time", reached / 1e9, bandwidth / 1e9 / _NEAR, "GB/s"),
            Evidence("bandwidth of a copy", bandwidth / 1e9, unit="GB/s"),
        ),
        cause=f"{nbytes / 2**20:.0f} MiB in {profile.time_ms:.2f} ms are {reached / bandwidth:.0%} of a large copy's bandwidth",
        advice=(
            "fewer bytes are all that is left: a narrower type, fusion with the operator before or after",
            "non-temporal stores avoid reading the output before it is written, where the compiler does not already",
        ),
        saved_share=max(0.0, 1 - least / profile.time_ms),
        basis="down to the fewest bytes over the bandwidth of a copy",
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_memory_roof",
    level="kernel",
    target="cpu",
    analyze=look,
    trigger="the call takes less than 1.2 times its fewest bytes over the measured bandwidth, and no matrix product bounds it",
    remedy="fewer bytes; the code is as fast as memory",
    gain_basis="what is left up to the bandwidth of a copy",
    bounds=frozenset({Bound.MEMORY, Bound.MIXED}),
)
