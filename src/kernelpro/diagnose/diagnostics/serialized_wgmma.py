"""Serialized wgmma: other uses of the accumulator registers keep the products from overlapping."""

from __future__ import annotations

import re

from kernelpro.diagnose.counters import TENSOR
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.records import Bound, Evidence

_WARNING = re.compile(
    r"wgmma.*serialized(?: due to (?P<why>.*?))?(?: in (?:the )?function .*)?$", re.IGNORECASE
)
_DRAIN_CLOCKS, _PRODUCT_CLOCKS = 80, 128
"""Clocks in which the tensor pipe is empty after each product that the code waits for, and clocks of an
m64n256k16 product."""
_FULL = 0.85
"""Tensor pipe utilization of a loop with products in flight."""


def _analyze(context: DiagnosticContext) -> Match | None:
    count = context.code.count("hgmma")
    if not count:
        return None
    warnings = [match for text in _warnings(context) if (match := _WARNING.search(text.strip()))]
    if not warnings:
        return None
    evidence = [Evidence("compiler warnings", len(warnings), 0), Evidence("wgmma instructions", count)]
    share = _DRAIN_CLOCKS / (_DRAIN_CLOCKS + _PRODUCT_CLOCKS)
    basis = (
        f"the tensor pipe drains for about {_DRAIN_CLOCKS} clocks after each product of about "
        f"{_PRODUCT_CLOCKS}"
    )
    if (used := context.metric_or_none(TENSOR)) is not None:
        evidence.append(Evidence("tensor pipe utilization", used, 100 * _FULL, "%"))
        share = min(share, max(0.0, 1 - used / 100 / _FULL))
        basis = f"the tensor pipe reaches {used:.0f}%, and {_FULL:.0%} with products in flight; {basis}"
    why = next((match["why"] for match in warnings if match["why"]), "")
    return Match(
        evidence=tuple(evidence),
        cause="the compiler waits after each wgmma instead of keeping several in flight"
        + (f": {why}" if why else ""),
        saved_share=share,
        basis=basis,
        where=context.line_of("hgmma"),
    )


def _warnings(context: DiagnosticContext) -> list[str]:
    """Compiler warnings about this kernel, and those about no kernel in particular."""
    name = plain_name(context.kernel.name)
    general = [t for t in context.profile.compiler.warnings if "function" not in t or name in t]
    return [*context.code.warnings, *general]


DIAGNOSTIC = Diagnostic(
    name="serialized_wgmma",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger="the compiler reports serialized wgmma instructions in a kernel that has them",
    remedy="no other use of accumulator registers between fence and wait; one commit for several products",
    gain_basis="the time in which the tensor pipe drains after each product, limited by its unused share",
    advice=(
        "do not touch accumulator registers between wgmma.fence and wgmma.wait_group: no scaling, copies or "
        "zeroing (use scale-d = 0)",
        "issue all products of a k tile, commit once, and wait for the previous group (wait_group 1), in "
        "straight-line code without calls",
        "keep accumulators in plain registers with compile-time indices, not passed by reference to "
        "functions that are not inlined",
    ),
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
    claims=(
        "waiting_at_barriers",
        "waiting_for_results",
        "waiting_for_memory",
        "matrix_instructions",
    ),
)
