"""Why warps wait, where no unit is full: the commonest reason, in words. Mostly a symptom of what other tools name."""

from __future__ import annotations

from kernelpro.diagnose.counters import RUNNING, hot_line, room, stalled, stalls
from kernelpro.diagnose.tool import ANY, Found, Scene, Tool
from kernelpro.diagnose.waiting import REASONS
from kernelpro.records import Evidence

SHARE = 0.3
"""Of the warps' time, for a reason to be worth naming."""
LEAST = 0.04


def look(scene: Scene) -> Found | None:
    shares = {name: stalled(scene, name) for name in REASONS}
    name = max(shares, key=lambda key: shares[key])
    share, reason = shares[name], REASONS[name]
    saved = min(reason.avoidable * share, room(scene))
    if share < SHARE or saved < LEAST:
        return None
    return Found(
        evidence=(
            Evidence(f"time that warps wait for {reason.words}", round(100 * share), 100 * SHARE, "%"),
            Evidence("left until a unit is full", round(100 * room(scene)), None, "%"),
        ),
        cause=f"warps spend {share:.0%} of their time waiting for {reason.words}, while no unit of the device is full",
        advice=reason.advice,
        saved=saved,
        how=f"{reason.avoidable:.0%} of this waiting can be hidden, until a unit is full",
        where=hot_line(scene.it, name),
    )


TOOL = Tool(
    name="warp_stall",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"one reason (barriers and fences have their own tools) is {SHARE:.0%} of the warps' time, and no unit is full",
    remedy="by reason: more loads in flight, wider accesses, independent chains, fewer instructions in the full queue",
    expects="Little's law: the avoidable share of the waiting (30 to 60 %, by reason), until a unit is full",
    affinity=RUNNING,
    metrics=stalls(*REASONS),
    lines=True,
    symptom_of=(ANY,),
)
