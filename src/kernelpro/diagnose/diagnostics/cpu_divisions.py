"""Avoidable divisions: by a loop-invariant value, or integer divisions to compute an index."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import MIN_SHARE, hot_loops
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_FLOAT_COST, _INTEGER_COST = 14.0, 60.0
"""Cost in simple instructions, of which 1 to 3 run per cycle: a vector division starts every 5 to 10 cycles,
a 64-bit integer division every 10 to 40."""
_OVERLAP = 0.8
"""Share of the shorter of both times in which the divider and the other units work at the same time."""


def _analyze(context: DiagnosticContext) -> Match | None:
    loops = hot_loops(context, _divides, whole=False)
    if loops is None:
        return None
    whole = hot_loops(context, _divides) or loops
    saved = loops.weighted(lambda loop: _division_share(loop, context.cpu.lanes))
    if _keeps_scalar(loops.worst):  # also the code that the compiler has moved out of the loop
        saved += max(0.0, whole.share - loops.share) * (1 - 1 / context.cpu.lanes)
    fixed, integer = loops.worst.fixed_divisors, loops.worst.count("integer_division")
    kinds = [f"{fixed} by a loop-invariant value"] * bool(fixed) + [f"{integer} of integers"] * bool(integer)
    advice = ["join divisions: a / b / c is a * (1 / (b * c)), with the factor computed once"]
    if integer:
        advice.insert(
            0, "loop over rows and columns instead of dividing a flat index; the loop can then be vectorized"
        )
    if fixed:
        advice.insert(0, "compute the reciprocal once before the loop and multiply")
    return Match(
        evidence=(
            percent("time in loops with avoidable divisions", whole.share, MIN_SHARE),
            Evidence("avoidable divisions per iteration of the hot loop", fixed + integer, 0),
            Evidence("instructions per iteration", loops.worst.instructions),
        ),
        cause=f"divisions in the hot loop: {' and '.join(kinds)}; each costs {_FLOAT_COST:g} to "
        f"{_INTEGER_COST:g} simple instructions",
        saved_share=saved,
        basis=f"divisions, and scalar code because of them, take about {saved / whole.share:.0%} of these "
        f"loops, which take {whole.share:.0%} of the time",
        where=loops.worst.where,
        advice=tuple(advice),
    )


def _divides(loop: CpuLoop) -> int:
    return loop.fixed_divisors or loop.count("integer_division")


def _keeps_scalar(loop: CpuLoop) -> bool:
    """Whether a division prevents vectorization: processors divide no vectors of integers."""
    return loop.count("integer_division") > 0 and not loop.bits


def _division_share(loop: CpuLoop, lanes: int) -> float:
    """Share of the loop's cost in divisions; without integer ones a scalar loop may be vectorized."""
    integer = loop.count("integer_division")
    cost = _FLOAT_COST * loop.fixed_divisors + _INTEGER_COST * integer
    rest = float(loop.instructions - loop.fixed_divisors - integer)
    before = rest + cost if integer else max(rest, cost) + (1 - _OVERLAP) * min(rest, cost)
    return 1 - rest / before / (lanes if _keeps_scalar(loop) else 1)


DIAGNOSTIC = Diagnostic(
    name="cpu_divisions",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger="loops with at least a tenth of the time divide by a loop-invariant register, or divide integers",
    remedy="multiply by a precomputed reciprocal; nested loops instead of remainders",
    gain_basis="the divisions' share of the loop, by their cost in instructions, partly hidden by other "
    "instructions",
    claims=("divisions", "vector_code", "scalar_code"),
)
