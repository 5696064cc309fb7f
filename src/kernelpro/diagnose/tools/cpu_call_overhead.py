"""Python, ctypes and torch's dispatch around small native calls."""

from __future__ import annotations

from kernelpro.diagnose.tool import Found, Missing, Scene, Tool
from kernelpro.records import Evidence

_LEAST = 0.15
"""Share of the time in the interpreter. One native call costs some microseconds around it, nothing in a call of milliseconds."""


def look(scene: Scene) -> Found | None:
    if not scene.cpu["dynamic"].get("samples"):
        raise Missing("samples of where time goes")
    shares, time_ms = scene.cpu["shares"], scene.profile.time_ms
    if shares["host"] < _LEAST:
        return None
    around = 1 - shares["native"] - shares["math"]
    return Found(
        evidence=(
            Evidence("time in the interpreter", shares["host"], _LEAST, "of 1"),
            Evidence("time outside native code of the candidate", around, unit="of 1"),
            Evidence("time of a call", time_ms, unit="ms"),
        ),
        cause=f"{around:.0%} of the time is spent around the native code: Python, conversion of arguments, views and allocations",
        advice=(
            "one native call for the whole work: pass the sizes and loop inside",
            "no views and no small tensors in forward; allocate the output once a call",
            "what does not depend on the inputs belongs into __init__",
        ),
        saved=around,
        how=f"native code is {1 - around:.0%} of the time and remains",
    )


TOOL = Tool(
    name="cpu_call_overhead",
    level="system",
    target="cpu",
    look=look,
    trigger="at least 15 % of the samples lie in the interpreter and its extension modules",
    remedy="one native call for all the work",
    expects="all time outside native code goes",
)
