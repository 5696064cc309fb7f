"""Memory roof: the call saturates the memory bandwidth, and only fewer bytes make it faster."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Bound, Evidence

NEAR = 1.2
"""Call time over the floor. Most kernels come no closer to a copy, with which the bandwidth is measured."""


def _analyze(context: DiagnosticContext) -> Match | None:
    profile, nbytes = context.profile, context.work.total_bytes
    bandwidth = profile.ceilings.bandwidth_for(nbytes)
    if not bandwidth or profile.time_ms <= 0:
        raise MissingData("the bandwidth of this machine")
    least = 1e3 * nbytes / bandwidth
    if least < 0.95 * profile.floor_ms or profile.time_ms > NEAR * least:
        return None
    achieved = nbytes / (1e-3 * profile.time_ms)
    return Match(
        evidence=(
            Evidence("minimum bytes over the call time", achieved / 1e9, bandwidth / 1e9 / NEAR, "GB/s"),
            Evidence("bandwidth of a copy", bandwidth / 1e9, unit="GB/s"),
        ),
        cause=f"{nbytes / 2**20:.0f} MiB in {profile.time_ms:.2f} ms are {achieved / bandwidth:.0%} of a "
        "copy's bandwidth",
        saved_share=max(0.0, 1 - least / profile.time_ms),
        basis="the time of the minimum bytes at the bandwidth of a copy remains",
        to_floor=True,
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_memory_roof",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger=f"the call takes less than {NEAR:g}x the time of its minimum bytes at the measured bandwidth, "
    "and no matrix product bounds it",
    remedy="fewer bytes; the code is as fast as memory",
    gain_basis="the time beyond that of the minimum bytes at the bandwidth of a copy",
    advice=(
        "move fewer bytes: a narrower type, fusion with the operator before or after",
        "use non-temporal stores, which avoid reading the output before writing it, unless the compiler "
        "already does",
    ),
    bounds=frozenset({Bound.MEMORY, Bound.MIXED}),
    claims=(
        "vector_code",
        "native_code",
        "scalar_code",
    ),
)
