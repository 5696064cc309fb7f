"""A chain of torch's element-wise and reducing operators: each reads from memory what the one before wrote."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

_ELEMENTWISE = re.compile(
    r"(add|sub|rsub|mul|div|neg|abs|exp|exp2|expm1|log|log1p|log2|sqrt|rsqrt|reciprocal|pow|square|sin|cos|tanh?|sigmoid|silu|gelu|relu"
    r"|elu|erf|softplus|mish|hardtanh|hardswish|hardsigmoid|leaky_relu|clamp(_min|_max)?|maximum|minimum|where|masked_fill|lerp|addcmul"
    r"|addcdiv|_to_copy|clone|copy|fill|zero|round|floor|ceil|sign|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|remainder|fmod)_?"
)
_BETWEEN = re.compile(
    r"sum|mean|var|std|var_mean|amax|amin|max|min|norm|linalg_vector_norm|_(log_)?softmax|logsumexp|cum\w+|native_\w*norm\w*"
)
_NOTICEABLE = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    seen = scene.cpu["dynamic"]
    if "operators" not in seen:
        raise MissingData("torch's operators, watched one by one")
    plain = [operator for operator in seen["operators"] if _ELEMENTWISE.fullmatch(operator["name"])]
    chain = plain + [operator for operator in seen["operators"] if _BETWEEN.fullmatch(operator["name"])]
    passes = sum(operator["count"] for operator in chain)
    if passes < 2 or not plain:
        return None
    call, together = seen["best_ms"], sum(operator["ms"] for operator in chain)
    kept = min(together, max(operator["ms"] / operator["count"] for operator in chain))
    share = (together - kept) / call
    if share < _NOTICEABLE:
        return None
    names = ", ".join(
        operator["name"] for operator in sorted(chain, key=lambda operator: -operator["ms"])[:4]
    )
    return Match(
        evidence=(
            Evidence("element-wise and reducing operators of torch in a call", passes, 2),
            Evidence("their share of a call", round(100 * together / call), 100 * _NOTICEABLE, "%"),
            Evidence("the longest of them", kept, unit="ms"),
        ),
        cause=f"{passes} operators of torch ({names}) pass their intermediate results through memory: {together:.3f} ms, where one "
        f"pass takes about {kept:.3f}",
        advice=(
            "write the chain as one native function (C++): a row or a block at a time, intermediates in registers or in cache",
            "put element-wise steps into the loop of the product or reduction beside them",
        ),
        saved_share=share,
        basis=f"one pass ({kept:.3f} ms, as the longest of them) instead of {passes} ({together:.3f} ms) in a call of {call:.3f} ms",
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_unfused_chain",
    level="system",
    target="cpu",
    analyze=look,
    trigger=f"two element-wise or reducing operators of torch or more, of which fusion would save {_NOTICEABLE:.0%} of a call",
    remedy="one native function, intermediates in registers or in cache",
    gain_basis="all passes but the longest",
)
