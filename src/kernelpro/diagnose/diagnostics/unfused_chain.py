"""A chain of element-wise library kernels: each reads from memory what the one before wrote."""

from __future__ import annotations

import re

from kernelpro.diagnose.device_time import COPYING
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence, Kernel

_ELEMENTWISE = re.compile(
    r"elementwise_kernel|pointwise|CUDAFunctor|BinaryFunctor|BUnaryFunctor|AUnaryFunctor", re.IGNORECASE
)
_BETWEEN = re.compile(
    r"reduce_kernel|softmax|SoftMax|layer_norm|LayerNorm|batch_norm|norm_kernel|cumsum|scan", re.IGNORECASE
)
_NOTICEABLE = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    line = scene.timeline
    mine = [
        kernel for kernel in scene.profile.kernels if not kernel.authored and not COPYING.search(kernel.name)
    ]
    plain = [kernel for kernel in mine if _ELEMENTWISE.search(kernel.name)]
    chain = plain + [kernel for kernel in mine if kernel not in plain and _BETWEEN.search(kernel.name)]
    passes = sum(kernel.launches for kernel in chain)
    if passes < 2 or not plain:
        return None
    together = sum(kernel.microseconds for kernel in chain)
    kept = min(together, max(max(map(_one_pass, chain)), _floor_us(scene)))
    share = (together - kept) / line.call_us
    if share < _NOTICEABLE:
        return None
    bandwidth = float(scene.device.get("dram_bandwidth") or scene.profile.ceilings.get("bandwidth") or 0.0)
    return Match(
        (
            Evidence("element-wise and reducing library kernels in a call", round(passes, 1), 2),
            Evidence("their share of a call", round(100 * together / line.call_us), 100 * _NOTICEABLE, "%"),
            Evidence(
                "bytes of intermediate results, about",
                round((together - kept) * 1e-6 * bandwidth),
                0,
                "bytes",
            ),
        ),
        (
            f"{passes:.0f} library kernels pass their intermediate results through "
            f"memory: {together:.0f} us, where one pass takes about {kept:.0f}"
        ),
        (
            "write the chain as one kernel that loads each input once, keeps intermediates in registers and stores the result",
            "put element-wise steps into the epilogue or prologue of the product or reduction beside them",
        ),
        share,
        (
            f"one pass ({kept:.0f} us, the longest of the chain or the floor) instead "
            f"of {passes:.0f} ({together:.0f} us) in a call of {line.call_us:.0f} us"
        ),
    )


def _one_pass(kernel: Kernel) -> float:
    return kernel.microseconds / max(1.0, kernel.launches)


def _floor_us(scene: DiagnosticContext) -> float:
    """Time in which the task's own bytes move: a fused chain moves no fewer."""
    work, bandwidth = scene.profile.work, scene.profile.ceilings.get("bandwidth", 0.0)
    return (
        1e6 * (work.get("read_bytes", 0.0) + work.get("written_bytes", 0.0)) / bandwidth if bandwidth else 0.0
    )


DIAGNOSTIC = Diagnostic(
    name="unfused_chain",
    level="system",
    target="cuda",
    analyze=look,
    trigger=f"two element-wise or reducing library kernels or more, of which fusion would save {_NOTICEABLE:.0%} of a call",
    remedy="one kernel, intermediates in registers",
    gain_basis="all passes but one, or all but the time in which the task's own bytes move",
    symptom_of=("launch_overhead",),
)
