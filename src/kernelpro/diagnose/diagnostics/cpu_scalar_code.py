"""Scalar loops: floating-point code that the compiler did not vectorize."""

from __future__ import annotations

from kernelpro.diagnose.account.loop_time import own_calls
from kernelpro.diagnose.cpu_loops import INFLATED, MAX_CHAINS, MIN_SHARE, hot_loops, inflation, interleaves
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.records import CpuLoop, Evidence

_CALL = 1.6
"""Time of a scalar loop with a call of a small function over that without the call."""


def _analyze(context: DiagnosticContext) -> Match | None:
    lanes = context.cpu.lanes
    loops = hot_loops(context, lambda loop: _is_scalar(context, loop))
    if loops is None:
        return None
    reasons = "; ".join(loops.worst.reasons) or "the compiler gives no reason"
    if called := own_calls(loops.worst):
        name = "a function through a pointer" if called[0] == "?" else plain_name(called[0])
        reasons = f"it calls {name}, which is not inlined"
    elif loops.worst.remainder:
        reasons = (
            "a vector version exists, but iterations run in the scalar remainder (short rows, or "
            "overlapping pointers)"
        )
    return Match(
        evidence=(
            percent("time in scalar floating-point loops", loops.share, MIN_SHARE),
            Evidence("floats per vector", lanes),
        ),
        cause=f"the hot loop is not vectorized, 1 instead of {lanes} floats at a time: {reasons}",
        saved_share=loops.weighted(lambda loop: 1 - 1 / lanes) + _saved_calls(context, lanes),
        basis=f"{loops.share:.0%} of the time is in scalar loops; with {lanes} floats at a time, 1/{lanes} "
        "of it remains",
        where=loops.worst.where,
    )


def _saved_calls(context: DiagnosticContext, lanes: int) -> float:
    """Share saved in addition by inlining: of the loops' own time, not of the functions that they call."""
    own = hot_loops(context, lambda loop: _is_scalar(context, loop) and own_calls(loop), whole=False)
    return own.share / lanes * (1 - 1 / _CALL) if own else 0.0


def _is_scalar(context: DiagnosticContext, loop: CpuLoop) -> object:
    """Whether the loop is scalar and no other diagnostic explains why."""
    if loop.bits or loop.math or loop.strided or loop.count("integer_division", "atomic"):
        return False
    if own_calls(loop):
        return True
    other_cause = bool(loop.indirect or (loop.chain and loop.accumulators <= MAX_CHAINS))
    if loop.updates:  # sums of many rows in memory, as an array of structures
        shared = bool(loop.calls) or (loop.parallel and inflation(context) >= INFLATED)  # a lock, cache lines
        other_cause = other_cause or loop.carried > 0 or shared or interleaves(context, loop)
    else:
        other_cause = other_cause or 2 * loop.count("double") >= loop.count("scalar_float")
    return loop.count("scalar_float") and not other_cause


DIAGNOSTIC = Diagnostic(
    name="cpu_scalar_code",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger="at least a tenth of the time is in innermost loops with scalar floating-point arithmetic only, "
    "and no other diagnostic (calls, divisions, sums, strides, updates in memory) explains why",
    remedy="remove what prevents vectorization, as the compiler reports it, with the line",
    gain_basis="the loops' time shrinks to 1 / (floats per vector)",
    advice=(
        "remove what the compiler reports: an early exit, a branch with a store, a call (also of a virtual "
        "function or std::function), pointers without __restrict__",
        "write the condition as a select (c ? a : b) on values that are computed anyway, and check for "
        "errors after the loop",
        "put #pragma omp simd over the loop, or use vector types (__attribute__((vector_size)))",
    ),
    claims=("scalar_code", "double_precision"),
)
