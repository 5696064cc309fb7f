"""Scalar libm calls (expf, tanhf, powf, ...) for every element."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelpro.diagnose.cpu_loops import MIN_SHARE, share_of_call
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent

_INSTRUCTIONS = frozenset(
    name + suffix
    for name in (
        *("sqrt", "floor", "ceil", "trunc", "rint", "nearbyint", "round"),
        *("fabs", "fmax", "fmin", "fma", "copysign"),
    )
    for suffix in ("", "f")
)
"""Functions for which processors have an instruction; compilers call libm for errno or traps only."""


_LONGER = 1.6
"""Time of a branch-free vector function over that of a fast scalar call (expf: 7 ns on an ARM core)."""
_FAST = re.compile(r"(exp2?|log2?|pow|sin|cos)f?")
_SLOW = 3.5
"""Time of glibc's other functions over that of a fast one (tanhf: 32 ns)."""
_DOUBLE = {"exp": 1.5, "exp2": 1.5, "log": 1.4, "log2": 1.5, "sin": 2.1, "cos": 2.1, "pow": 5.0}
"""Time of fast functions on doubles over that of expf. Measured on a Xeon: expf 4 ns, exp 6 ns, pow 20 ns.
Slow functions take as long on floats."""
_POLYNOMIALS = re.compile(r"(erfc?|[lt]gamma)f?")
"""Functions whose vector code takes two polynomials: an exponential and their own."""


def _analyze(context: DiagnosticContext) -> Match | None:
    lanes, in_libm = context.cpu.lanes, context.cpu.shares.libm
    loops = [loop for loop in context.cpu.loops if loop.math and loop.share > 0]
    share = min(1.0, in_libm + sum(loop.share for loop in loops))
    stubs = context.cpu.shares.native - sum(function.share for function in context.cpu.functions)
    share = min(1.0, share + max(0.0, stubs))
    if not loops or share < MIN_SHARE:
        return None
    names = sorted({name for loop in loops for name in loop.math})
    costs, vectors = sum(map(_cost, names)), sum(map(_vector_cost, names))
    longer = min(vectors / costs, 0.9 * lanes)
    return Match(
        evidence=(
            percent("time in loops that call libm, and in libm", share, MIN_SHARE),
            percent("time in libm alone", in_libm),
        ),
        cause=f"every element calls {', '.join(names)}: one value at a time, and the call prevents "
        "vectorization",
        saved_share=share_of_call(context) * share * (1 - longer / lanes),
        basis=f"the calls and their loops take {share:.0%} of the time; vector code computes {lanes} floats "
        f"in {longer:.1f}x the time of one call",
        where=loops[0].where,
        advice=(
            *_advice_by_name(names),
            "make fewer calls: one exponential serves sigmoid, tanh and softmax; hoist invariants out of the "
            "loop",
            "on x86-64 with glibc, -ffast-math lets g++ use libmvec's vector versions (4 ulp)",
        ),
    )


def _cost(name: str) -> float:
    """Time of a scalar call over that of a fast one."""
    if name in _INSTRUCTIONS:
        return 1.0
    return _DOUBLE.get(name, 1.0) if _FAST.fullmatch(name) else _SLOW


def _vector_cost(name: str) -> float:
    """Time of vector code for a vector of floats over that of a fast scalar call."""
    return _LONGER * (2 if _POLYNOMIALS.fullmatch(name) else 1)


def _advice_by_name(names: list[str]) -> Iterator[str]:
    """How to replace the calls: with instructions, or with functions that vectorize."""
    instructions = [name for name in names if name in _INSTRUCTIONS]
    functions = [name for name in names if name not in _INSTRUCTIONS]
    if functions:
        yield (
            f"write {', '.join(functions)} as branch-free inline functions on float, so that the compiler "
            "can vectorize the loop: reduce the argument with bit operations, evaluate a polynomial, and "
            "select special values (the playbook's `fast_...` functions stay within 5 ulp)"
        )
    if instructions:
        yield (
            f"{', '.join(instructions)}: the processor has an instruction; compile with -fno-math-errno "
            "-fno-trapping-math"
        )


DIAGNOSTIC = Diagnostic(
    name="cpu_math_calls",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger="a hot loop calls a scalar libm function, and calls and loop take at least a tenth of the time",
    remedy="inline functions that vectorize, the processor's own instructions, or fewer calls",
    gain_basis="the time of the calls and of their loops, less that of vector code for the same floats",
    claims=("math_functions", "native_code"),
)
