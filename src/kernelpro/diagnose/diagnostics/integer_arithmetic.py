"""Index arithmetic that costs more than the work: divisions and remainders by run-time values, 64-bit addresses in the loop."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import GLOBAL, MATRIX, hot_code, time_saved
from kernelpro.records import Evidence

ALU = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
_USUAL = 3.0
"""Integer instructions for each useful one (arithmetic, memory access) in ordinary code: the generated element-wise,
normalising, scanning and transposing kernels of this project have 0.3 to 2.7."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    integers = hot.count("alu")
    useful = max(
        1.0,
        hot.count(
            "fma32",
            "half",
            "fp64",
            *GLOBAL,
            "shared_load",
            "shared_store",
            "shuffle",
            "atomic",
            "shared_atomic",
        ),
    )
    if hot.count(*MATRIX, "tma") or integers <= _USUAL * useful:
        return None
    divides = min(hot.count("special"), hot.count("convert")) > 0 or hot.count("call") > 0
    surplus = 1 - useful / integers
    gone = {kind: surplus * hot.count(kind) for kind in ("alu", "branch", "call", "convert", "special")}
    share = time_saved(scene, hot, gone)
    if share < 0.05:
        return None
    evidence = [Evidence("integer instructions for each useful one", round(integers / useful, 1), _USUAL)]
    if (used := scene.metric_or_none(ALU)) is not None:
        evidence.append(Evidence("use of the integer pipe", used, 60, "%"))
    what = (
        "division and remainder by values that are known only at run time"
        if divides
        else "address and index computation"
    )
    return Match(
        tuple(evidence),
        f"{integers:.0f} of {hot.instructions:.0f} instructions of the hot code are integer arithmetic: {what}",
        (
            (
                "take rows and columns from the grid (blockIdx.y, program_id(1)) "
                "or step them in the loop, instead of dividing an index"
            ),
            "divide by constants (template parameters, tl.constexpr) or multiply by a precomputed reciprocal",
            "use 32-bit indices inside a block, with one 64-bit base pointer; move what is invariant out of the loop",
        ),
        share,
        (
            f"{surplus:.0%} of the integer instructions are beyond one for "
            "each useful instruction, and the pipes are busier than memory"
        ),
        scene.code.get("where", {}).get("alu", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="integer_arithmetic",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"more than {_USUAL:g} integer instructions for each useful one in the hot code, and the SM busier than memory",
    remedy="no division by run-time values, 32-bit indices, invariants out of the loop",
    gain_basis="busiest pipe with and without the surplus, down to the time memory needs",
    metrics=(ALU,),
    symptom_of=(
        "special_functions",
        "double_precision",
        "spills",
        "divergence",
        "missing_reuse",
        "uncoalesced_access",
    ),
)
