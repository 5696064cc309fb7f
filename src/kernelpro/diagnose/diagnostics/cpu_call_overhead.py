"""Call overhead: Python, ctypes and torch's dispatch around small native calls."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import SEVERAL_CALLS, effective_threads
from kernelpro.diagnose.cpu_loops import share_of_call
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.records import CpuRun, Evidence

MIN_SHARE = 0.15
"""Share of the time in the interpreter. Calling native code costs a few microseconds, negligible in a call of
milliseconds."""
_NO_SPEEDUP = 0.9
"""Time with all threads over time with one, above which the other threads are hardly worth waking."""

_WITHOUT_NATIVE = (
    "write the work as one native call (C++): pass the sizes and loop inside",
    "use fewer operators: in place where allowed, out= into your own buffer, one fused torch operator for "
    "several",
)
_SEVERAL_CALLS = (
    "make one native call for the whole work: pass the sizes and loop inside",
    "avoid views and small tensors in forward; keep the output in your own buffer",
    "move what does not depend on the inputs to __init__",
)


def _analyze(context: DiagnosticContext) -> Match | None:
    run, shares = context.cpu.dynamic, context.cpu.shares
    if not run.samples:
        raise MissingData("samples of where time goes")
    calls, outside = run.native_calls, 1 - shares.native - shares.libm
    if calls and calls < SEVERAL_CALLS and run.call_ms is not None and run.native_ms is not None:
        # Samples overstate it on a busy machine. With many calls, native_ms includes argument conversion.
        around = (run.call_ms - run.native_ms) / context.profile.time_ms
        outside = min(outside, max(0.0, around))
    if min(shares.host, outside) < MIN_SHARE:
        return None
    evidence = (
        percent("time in the interpreter", shares.host, MIN_SHARE),
        *(() if calls is None else (Evidence("native calls per call", calls, 1),)),
        percent("time outside the candidate's native code", outside),
        Evidence("time of a call", context.profile.time_ms, unit="ms"),
    )
    if calls == 0:
        return Match(
            evidence=evidence,
            cause=f"Python takes {shares.host:.0%} of the time, between torch operators; the candidate has "
            "no native code",
            saved_share=shares.host,
            basis=f"torch operators take {1 - shares.host:.0%} of the time and remain",
            advice=_WITHOUT_NATIVE,
        )
    single = calls is not None and calls < SEVERAL_CALLS
    left = 1 - outside
    threads = effective_threads(context.cpu)
    if not single and threads:  # one call distributes the work over all cores, and wakes them once
        left *= threads / context.cpu.cores * share_of_call(context)
    reason = "Python around its one call" if single else "Python, argument conversion, views and allocations"
    return Match(
        evidence=evidence,
        cause=f"{outside:.0%} of the time is spent around the native code: {reason}",
        saved_share=1 - left,
        basis=f"native code takes {1 - outside:.0%} of the time and remains"
        + ("" if single else f"; on all cores, {left:.0%}"),
        advice=_single_call_advice(run, context.profile.source) if single else _SEVERAL_CALLS,
    )


def _single_call_advice(run: CpuRun, source: str) -> tuple[str, ...]:
    """What remains beside one native call: the rest of forward, and threads woken for little work."""
    strip = (
        "strip forward to that call: no contiguous, views, checks or allocations; create the output and "
        "packed parameters once, bind the function to a name once"
    )
    arguments = "pass fewer arguments, since each is converted in every call: sizes as -D constants"
    alone, best = run.alone_ms, run.best_ms
    # With num_threads in the source the number is fixed, and `alone_ms` was not measured with one thread.
    if alone and best and best > _NO_SPEEDUP * alone and "num_threads" not in source:
        threads = (
            f"use fewer threads (num_threads, tunable): {best:.4f} ms with all of them, {alone:.4f} ms "
            "with one"
        )
        return (strip, threads, arguments)
    return (strip, arguments)


DIAGNOSTIC = Diagnostic(
    name="cpu_call_overhead",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger=f"at least {MIN_SHARE:.0%} of the samples are in the interpreter and its extension modules",
    remedy="one native call for all the work; less Python around it and no more threads than help",
    gain_basis="all time outside native code; without native code, the time in the interpreter",
    claims=(
        "host",
        "torch_operators",
        "thread_coordination",
    ),
)
