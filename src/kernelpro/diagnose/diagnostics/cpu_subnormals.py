"""Subnormal numbers: x86 processors compute with values below 1.2e-38 in microcode, a hundred cycles each."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

SLOWER = 1.5
"""CPU time of a call with subnormal numbers over that without. On a busy machine repetitions differ by
a quarter; a loop of subnormal numbers takes ten times as long."""


def _analyze(context: DiagnosticContext) -> Match | None:
    run = context.cpu.dynamic
    if not run.alone_ms or not run.flushed_ms:
        raise MissingData("calls with subnormal numbers flushed to zero")
    slower = run.alone_ms / run.flushed_ms
    if slower < SLOWER:
        return None
    hot = context.cpu.loops[:1]
    return Match(
        evidence=(
            Evidence("CPU time over that with subnormals flushed to zero", slower, SLOWER, "x"),
            Evidence("a call with one thread", run.alone_ms, unit="ms"),
            Evidence("the same, flushed to zero", run.flushed_ms, unit="ms"),
        ),
        cause="values below 1.2e-38 (subnormal numbers) occur in the inputs or on the way, in lanes that a "
        "select discards too; each costs about a hundred cycles",
        saved_share=1 - 1 / slower,
        basis=f"with subnormal numbers flushed to zero, one thread takes {run.flushed_ms:.2f} instead of "
        f"{run.alone_ms:.2f} ms",
        where=next((loop.where for loop in hot if loop.where), ""),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_subnormals",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger=f"a call with one thread takes {SLOWER:g}x the CPU time of one in which the processor flushes "
    "subnormal numbers to zero",
    remedy="arguments limited so that results stay normal, or flush-to-zero mode in each thread",
    gain_basis="the time that flushing saves",
    advice=(
        "limit arguments so that results stay normal: exp between -80 and 80, not 88; both sides of a select "
        "are computed",
        "set flush-to-zero and denormals-are-zero (_MM_SET_FLUSH_ZERO_MODE, _MM_SET_DENORMALS_ZERO_MODE) at "
        "the start of each parallel region, and restore them at its end",
        "add a tiny constant (1e-30) to decaying recurrences",
    ),
    claims=(
        *("vector_code", "scalar_code", "native_code", "divisions", "dependency_chains"),
        *("strided_access", "indirect_access", "math_functions", "double_precision"),
    ),
)
