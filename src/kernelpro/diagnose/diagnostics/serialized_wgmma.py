"""wgmma made to wait: the compiler could not keep the asynchronous products apart from other uses of their registers."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.diagnose.pipes import TENSOR
from kernelpro.records import Bound, Evidence

_WARNING = re.compile(
    r"wgmma.*serialized(?: due to (?P<why>.*?))?(?: in (?:the )?function .*)?$", re.IGNORECASE
)
_DRAIN, _PRODUCT = 80, 128
"""Clocks in which the tensor pipe runs empty after each waited-for product, and those of a m64n256k16 one."""
_FULL = 0.85
"""Use of the tensor pipe that a loop with products in flight reaches."""


def look(scene: DiagnosticContext) -> Match | None:
    if not scene.count_instructions("hgmma", hot=False):
        return None
    warned = [match for text in _remarks(scene) if (match := _WARNING.search(text.strip()))]
    if not warned:
        return None
    evidence = [
        Evidence("warnings of the compiler", len(warned), 0),
        Evidence("wgmma instructions", scene.count_instructions("hgmma", hot=False)),
    ]
    share = _DRAIN / (_DRAIN + _PRODUCT)
    how = f"the pipe runs empty for about {_DRAIN} clocks after each product of about {_PRODUCT}"
    if (used := scene.metric_or_none(TENSOR)) is not None:
        evidence.append(Evidence("use of the tensor pipe", used, 100 * _FULL, "%"))
        share = min(share, max(0.0, 1 - used / 100 / _FULL))
        how = f"the tensor pipe is used {used:.0f}%, with products in flight {_FULL:.0%}; {how}"
    why = next((match["why"] for match in warned if match["why"]), "")
    return Match(
        tuple(evidence),
        "the compiler waits after each wgmma instead of keeping several in flight"
        + (f": {why}" if why else ""),
        (
            (
                "between wgmma.fence and wgmma.wait_group touch no accumulator "
                "register: no scaling, no copies, no zeroing by hand (use scale-d = 0)"
            ),
            (
                "issue all products of a k tile, commit once, and wait for the "
                "previous group (wait_group 1), in straight-line code without calls"
            ),
            (
                "keep accumulators in plain registers, indexed at compile "
                "time, not passed by reference to functions that are not inlined"
            ),
        ),
        share,
        how,
        scene.code.get("where", {}).get("hgmma", ""),
    )


def _remarks(scene: DiagnosticContext) -> list[str]:
    """What the compiler said of this kernel, and what it said of none in particular."""
    general = [
        text
        for text in scene.profile.compiler.get("warnings", ())
        if "function" not in text or plain_name(scene.kernel.name) in text
    ]
    return [*scene.code.get("warnings", ()), *general]


DIAGNOSTIC = Diagnostic(
    name="serialized_wgmma",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger="the compiler reports serialised wgmma instructions in a kernel that has them",
    remedy="no other use of accumulator registers between fence and wait; one commit for several products",
    gain_basis="the tensor pipe runs empty after each product; no more than its measured use leaves",
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
)
