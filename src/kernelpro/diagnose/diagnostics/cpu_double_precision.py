"""Unintended double precision in a float task: a literal 0.5 instead of 0.5f, or a double intermediate."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import MIN_SHARE, hot_loops
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_DENSE = 0.2
"""Share of a loop's instructions: fewer (for a total, a counter) cost little."""


def _analyze(context: DiagnosticContext) -> Match | None:
    loops = None if context.profile.is_double else hot_loops(context, _is_double)
    if loops is None:
        return None
    return Match(
        evidence=(
            percent("time in loops with double-precision arithmetic", loops.share, MIN_SHARE),
            Evidence("double-precision instructions in the hot loop", loops.worst.count("double"), 0),
            Evidence("conversions between float and double", loops.worst.count("convert"), 0),
        ),
        cause="the loop computes in double although the task is float: a vector holds half as many numbers, "
        "and values are converted at both ends",
        saved_share=loops.weighted(lambda loop: _saved(loop, context.cpu.lanes)),
        basis=f"{loops.share:.0%} of the time is in such loops; float halves their arithmetic and removes "
        "the conversions",
        where=loops.worst.where,
    )


def _is_double(loop: CpuLoop) -> bool:
    accumulates = loop.carried or loop.count("atomic") or (loop.updates and not loop.bits)  # good practice
    return loop.count("double", "convert") >= _DENSE * loop.instructions and not accumulates


def _saved(loop: CpuLoop, lanes: int) -> float:
    """Share of the loop's time that float saves.

    Accesses of a vector loop to one place are spilled registers; sums in float take half as many.
    """
    if not loop.bits and not loop.chain:
        return 1 - 1 / lanes
    converts = loop.count("convert")
    accesses = loop.count("load", "store")
    arithmetic = loop.instructions - converts - accesses
    spilled = max(0, accesses - loop.streamed - loop.strided) if loop.bits else 0
    return (converts + arithmetic / 2 + spilled) / loop.instructions


DIAGNOSTIC = Diagnostic(
    name="cpu_double_precision",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger="loops with at least a tenth of the time, a fifth of whose instructions compute in double or "
    "convert, in a task without float64",
    remedy="float literals, float functions, float intermediates",
    gain_basis="half of the loop's arithmetic and all its conversions",
    advice=(
        "write float literals (0.5f), call std:: functions on floats, declare intermediates float",
        "where digits matter, keep a double total outside the innermost loop, over partial sums in float",
    ),
    claims=("double_precision", "math_functions", "scalar_code", "vector_code"),
)
