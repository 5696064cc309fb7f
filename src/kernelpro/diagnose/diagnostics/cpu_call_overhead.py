"""Python, ctypes and torch's dispatch around small native calls."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

_LEAST = 0.15
"""Share of the time in the interpreter. One native call costs some microseconds around it, nothing in a call of milliseconds."""


_ONE = 1.5
"""Native calls in a call: below, there is one."""
_NO_HELP = 0.9
"""Time with all threads over time with one: above, the others are hardly worth waking."""


def look(scene: DiagnosticContext) -> Match | None:
    dynamic = scene.cpu["dynamic"]
    if not dynamic.get("samples"):
        raise MissingData("samples of where time goes")
    shares, time_ms = scene.cpu["shares"], scene.profile.time_ms
    if shares["host"] < _LEAST:
        return None
    calls = dynamic.get("native_calls")
    none = calls == 0
    around = shares["host"] if none else 1 - shares["native"] - shares["math"]
    single = calls is not None and calls < _ONE
    evidence = [
        Evidence("time in the interpreter", shares["host"], _LEAST, "of 1"),
        Evidence(
            "time outside native code of the candidate", 1 - shares["native"] - shares["math"], unit="of 1"
        ),
        Evidence("time of a call", time_ms, unit="ms"),
    ]
    if calls is not None:
        evidence.insert(1, Evidence("native calls in a call", calls, 1))
    if none:
        return Match(
            evidence=tuple(evidence),
            cause=f"{around:.0%} of the time is Python's, between torch's operators: the candidate has no native code",
            advice=_NONE,
            saved_share=around,
            basis=f"torch's operators are {1 - around:.0%} of the time and remain",
        )
    return Match(
        evidence=tuple(evidence),
        cause=f"{around:.0%} of the time is spent around the native code: "
        + (
            "Python around its one call"
            if single
            else "Python, conversion of arguments, views and allocations"
        ),
        advice=_around_one(dynamic, scene.profile.source) if single else _SEVERAL,
        saved_share=around,
        basis=f"native code is {1 - around:.0%} of the time and remains",
    )


_NONE = (
    "write the work as one native call (C++): pass the sizes and loop inside",
    "fewer operators: in place where that is allowed, out= into a buffer of your own, one fused operator of torch for several",
)
_SEVERAL = (
    "one native call for the whole work: pass the sizes and loop inside",
    "no views and no small tensors in forward; keep the output in a buffer of your own",
    "what does not depend on the inputs belongs into __init__",
)


def _around_one(dynamic: dict[str, Any], source: str) -> tuple[str, ...]:
    """There is one native call: what is left is what forward does beside it, and threads that are woken for little."""
    advice = (
        "strip forward to that call: no contiguous, views, checks or allocations; the output and packed parameters made once, "
        "the function bound to a name once",
        "fewer arguments, as each is converted in every call: sizes as -D constants",
    )
    alone, best = dynamic.get("alone_ms"), dynamic.get("best_ms")
    if (
        alone and best and best > _NO_HELP * alone and "num_threads" not in source
    ):  # a fixed number was not changed for `alone`
        woken = f"fewer threads (num_threads, tunable): a call takes {best:.4f} ms with all of them and {alone:.4f} with one"
        return (advice[0], woken, advice[1])
    return advice


DIAGNOSTIC = Diagnostic(
    name="cpu_call_overhead",
    level="system",
    target="cpu",
    analyze=look,
    trigger="at least 15 % of the samples lie in the interpreter and its extension modules",
    remedy="one native call for all the work; where there is one, less Python around it and no more threads than help",
    gain_basis="all time outside native code goes; without native code, the interpreter's",
)
