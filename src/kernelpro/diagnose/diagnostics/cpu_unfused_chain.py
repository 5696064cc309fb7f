"""Unfused chain: element-wise and reduction operators of torch exchange intermediates through memory."""

from __future__ import annotations

import re

from kernelpro.diagnose.account.cpu import system_share
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.records import Evidence

_ELEMENTWISE = re.compile(
    r"(add|sub|rsub|mul|div|neg|abs|exp|exp2|expm1|log|log1p|log2|sqrt|rsqrt|reciprocal|pow|square|sin|cos|tanh?"
    r"|sigmoid|silu|gelu|relu|elu|erf|softplus|mish|hardtanh|hardswish|hardsigmoid|leaky_relu|clamp(_min|_max)?"
    r"|maximum|minimum|where|masked_fill|lerp|addcmul|addcdiv|_to_copy|clone|copy|fill|zero|round|floor|ceil|sign"
    r"|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|remainder|fmod)_?"
)
_REDUCTION = re.compile(
    r"sum|mean|var|std|var_mean|amax|amin|max|min|norm|linalg_vector_norm|_(log_)?softmax|logsumexp|cum\w+"
    r"|native_\w*norm\w*"
)
_COPY = re.compile(r"clone|copy_?|_to_copy")
"""Operators that disappear if the next step reads what they copy."""
MIN_SAVED = 0.05
_REUSED_BYTES = 32 << 20
"""glibc reuses smaller blocks; larger ones return to the operating system."""


def _analyze(context: DiagnosticContext) -> Match | None:
    operators, call = context.cpu.dynamic.operators, context.cpu.dynamic.best_ms
    if operators is None or not call:
        raise MissingData("the times of torch operators")
    elementwise = [operator for operator in operators if _ELEMENTWISE.fullmatch(operator.name)]
    chain = elementwise + [operator for operator in operators if _REDUCTION.fullmatch(operator.name)]
    count = sum(operator.count for operator in chain)
    if count < 2 or not elementwise:
        return None
    total = sum(operator.ms for operator in chain)
    computing = [operator for operator in chain if not _COPY.fullmatch(operator.name)]
    fused = min(total, max((operator.ms / operator.count for operator in computing), default=0.0))
    if context.work.written_bytes < _REUSED_BYTES:  # the output reuses the memory of the last call
        fused *= 1 - system_share(context.cpu)
    call = max(call, sum(operator.ms for operator in operators))  # measured apart: other load may slow either
    outside = max(0.0, call - sum(operator.ms for operator in operators))
    removed = (count - bool(computing)) / count  # copies disappear altogether
    released = min(outside, call * system_share(context.cpu)) * removed
    share = (total - fused + released) / call
    if share < MIN_SAVED:
        return None
    names = ", ".join(operator.name for operator in sorted(chain, key=lambda operator: -operator.ms)[:4])
    return Match(
        evidence=(
            Evidence("element-wise and reduction operators in a call", count, 2),
            percent("their share of a call", total / call, MIN_SAVED),
            Evidence("longest pass", fused, unit="ms"),
        ),
        cause=f"{count} torch operators ({names}) exchange intermediates through memory: {total:.3f} ms, "
        f"where one fused pass would take about {fused:.3f}",
        saved_share=share,
        basis=f"one pass ({fused:.3f} ms, the longest without page faults) instead of {count} "
        f"({total:.3f} ms) in a call of {call:.3f} ms"
        + (f", and {released:.3f} ms to release their memory" if released >= MIN_SAVED * call else ""),
        claims=None if computing else ("torch_operators", "host", "operating_system"),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_unfused_chain",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger="two or more element-wise or reduction operators of torch, whose fusion would save "
    f"{MIN_SAVED:.0%} of a call",
    remedy="one native function, intermediates in registers or in cache",
    gain_basis="the time of all passes but the longest, and of page faults outside them",
    advice=(
        "fuse the chain into one native function (C++): a row or a block at a time, intermediates in "
        "registers or cache",
        "fuse element-wise steps into the loop of the neighboring product or reduction",
    ),
    claims=(
        "torch_operators",
        "host",
        "operating_system",
        "vector_code",
        "native_code",
        "scalar_code",
    ),
)
