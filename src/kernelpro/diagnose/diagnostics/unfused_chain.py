"""Unfused chain: element-wise library kernels exchange intermediates through memory."""

from __future__ import annotations

import re

from kernelpro.diagnose.device_time import COPYING, untraced_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Evidence

_ELEMENTWISE = re.compile(
    r"elementwise_kernel|pointwise|CUDAFunctor|BinaryFunctor|BUnaryFunctor|AUnaryFunctor", re.IGNORECASE
)
_REDUCTION = re.compile(
    r"reduce_kernel|softmax|SoftMax|layer_norm|LayerNorm|batch_norm|norm_kernel|cumsum|scan", re.IGNORECASE
)
MIN_SAVED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    ceiling = context.profile.ceilings.bandwidth
    call = max(context.timeline.busy_us, untraced_us(context.profile, context.timeline))
    library = [k for k in context.profile.kernels if not k.authored and not COPYING.search(k.name)]
    elementwise = [k for k in library if _ELEMENTWISE.search(k.name)]
    chain = [k for k in library if k in elementwise or _REDUCTION.search(k.name)]
    launches = sum(kernel.launches for kernel in chain)
    if launches < 2 or not elementwise:
        return None
    total = sum(kernel.microseconds for kernel in chain)
    longest = max(kernel.microseconds / max(1.0, kernel.launches) for kernel in chain)
    # A fused chain takes at least the time of the task's bytes.
    least = 1e6 * context.work.total_bytes / ceiling if ceiling else 0.0
    fused = min(total, max(longest, least))
    share = (total - fused) / call
    if share < MIN_SAVED:
        return None
    intermediates = round((total - fused) * 1e-6 * (context.device.dram_bandwidth or ceiling))
    return Match(
        evidence=(
            Evidence("element-wise and reduction library kernels in a call", round(launches, 1), 2),
            percent("their share of a call", total / call, MIN_SAVED),
            Evidence("approximate bytes of intermediates", intermediates, 0, "bytes"),
        ),
        cause=f"{launches:.0f} library kernels exchange intermediates through memory: {total:.0f} us, where "
        f"one fused kernel would take about {fused:.0f}",
        saved_share=share,
        basis=f"one pass ({fused:.0f} us, the longest kernel of the chain or the floor) instead of "
        f"{launches:.0f} ({total:.0f} us) in a call of {call:.0f} us",
    )


DIAGNOSTIC = Diagnostic(
    name="unfused_chain",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger="two or more element-wise or reduction library kernels, whose fusion would save "
    f"{MIN_SAVED:.0%} of a call",
    remedy="one kernel, intermediates in registers",
    gain_basis="the time of all passes but one; the fused pass takes at least the time of the task's bytes",
    advice=(
        "fuse the chain into one kernel that loads each input once, keeps intermediates in registers and "
        "stores the result",
        "fuse element-wise steps into the epilogue or prologue of the neighboring product or reduction",
    ),
)
