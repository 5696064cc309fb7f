"""More bytes through DRAM than the task needs: several passes over the input, intermediates written and read back."""

from __future__ import annotations

from kernelpro.diagnose.counters import DRAM, RUNNING
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, excess
from kernelpro.records import Evidence

FACTOR = 1.3
"""Of the fewest bytes: halos, statistics and partial lines of good kernels stay below."""
BOUND = 0.5
"""DRAM must set at least half of the time, else fewer bytes change little."""
CONTRIBUTES = 0.2
"""Part of a call's traffic from which a kernel is spoken of."""


def look(scene: Scene) -> Found | None:
    over = excess(scene)
    if over.factor < FACTOR or over.bound < BOUND or over.own < CONTRIBUTES:
        return None
    read, needed = scene.metric(DRAM_READ) * max(1.0, scene.it.launches), scene.profile.work.get("read_bytes", 0.0)
    several = len(scene.profile.kernels) > 1
    again = (
        f"this kernel alone reads {read / needed:.1f} times what the task's inputs hold"
        if needed and read > FACTOR * needed
        else ""
    )
    who = f"the kernels of a call move {over.factor:.1f} times" if several else f"the kernel moves {over.factor:.1f} times"
    return Found(
        evidence=(
            Evidence("bytes through DRAM in a call", over.moved, over.fewest, "B"),
            Evidence("bytes this kernel moves, share of the call's", round(100 * over.own), 100 * CONTRIBUTES, "%"),
            Evidence("use of DRAM", round(scene.metric(DRAM)), None, "%"),
        ),
        cause=f"{who} the bytes that the task needs ({over.moved / 1e6:.0f} MB for {over.fewest / 1e6:.0f} MB)"
        + (f"; {again}" if again else "; intermediates are written and read back"),
        advice=(
            "read each input once: keep a row or a tile in registers or shared memory between the passes over it",
            "compute statistics in one pass (online maximum and sum, Welford or shifted sums)",
            "fuse the kernels that hand intermediates on, so that these never leave the SM",
        ),
        saved=over.saved,
        how=f"{1 - 1 / over.factor:.0%} of the bytes are needless, and DRAM sets {over.bound:.0%} of the time",
    )


TOOL = Tool(
    name="excess_traffic",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"the kernels of a call move {FACTOR} times the fewest bytes of the task through DRAM, and DRAM sets at least half of "
    f"this kernel's time; spoken of for kernels with {CONTRIBUTES:.0%} of the traffic or more",
    remedy="one pass over the input; statistics online; fusion",
    expects="the share of needless bytes, times how far DRAM sets the time",
    affinity=RUNNING,
    metrics=(DRAM, DRAM_READ, DRAM_WRITTEN),
    symptom_of=("uncoalesced_access", "sector_waste", "l2_thrash", "spills"),
)
