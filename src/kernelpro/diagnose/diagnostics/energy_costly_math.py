"""Costly arithmetic that memory hides: IEEE division and square root, doubles, accurate functions. It costs no time, but energy."""

from __future__ import annotations

import ast
import re

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_saved
from kernelpro.diagnose.pipes import MATRIX, hot_code
from kernelpro.records import Evidence

_STRAY = 0.02
"""Share of doubles below which they are the rarely taken path of a library function."""
_CHEAP = 8
"""Instructions around a function of the special-function unit that need be there."""
_DEAR = 24
"""Instructions that an accurate function takes beyond: expf 8, a division 10, tanhf and powf 20 to 40."""
_SLOW = 8
"""Instructions beyond its quick form of a division, reciprocal or root that is right to the last bit: corrections, and a look
at the exponent with a jump to a slow path, which in machine code is how one knows it."""
_NOTICEABLE = 0.03
_WITHOUT_UNIT = re.compile(r"(?<!\w)(?:log(?:1p)?|sin|cos|tan)f?\s*\(")
"""Functions whose exact versions do without the special-function unit."""
_CHEAPER = (
    (
        r"\b(?:tanhf?|erff?)\s*\(",
        "tanhf, erff: 1 - 2 / (exp2f(2.8854f * x) + 1), or 1 - exp2f of a polynomial, to 1e-7, where zero is no special place",
        "tanh, erf: 1 - 2 / (tl.exp2(2.8854 * x) + 1), or 1 - tl.exp2 of a polynomial, to 1e-7, where zero is no special place",
    ),
    (
        r"\blog(?:1p)?f?\s*\(",
        "logf(x): __logf(x), 3 ulp, 4e-7 near 1",
        "tl.log(x): libdevice.fast_logf(x), 3 ulp, 4e-7 near 1",
    ),
    (r"\bpowf?\s*\(", *2 * ("pow(x, n) with a small n: products and square roots",)),
    (
        r"\b(?:expf?|softmax)\s*\(",
        "expf(x): exp2f(x * 1.4427f), 2 ulp, built with -ftz=true, the factor folded into a scale that is there anyway",
        "tl.exp(x): tl.exp2(x * 1.4427), 2 ulp, with the factor folded into a scale that is there anyway",
    ),
    (
        r"\b(?:sin|cos|tan)f?\s*\(",
        "sinf(x), cosf(x): __sinf(x), __cosf(x), right to 5e-7 between -pi and pi",
        "tl.sin(x), tl.cos(x): libdevice.fast_sinf(x), libdevice.fast_cosf(x), right to 5e-7 between -pi and pi",
    ),
    (
        r"1(?:\.0*)?f?\s*/\s*(?:\w+\.)*sqrt",
        "1 / sqrtf(x): rsqrtf(x), 2 ulp",
        "1 / tl.sqrt(x): tl.rsqrt(x), 2 ulp",
    ),
    (
        r"\b(?:sqrtf?|__fsqrt_rn)\s*\(",
        "sqrtf(x): built with -prec-sqrt=false it is one instruction of the special-function unit, 1 ulp",
        "",
    ),
    (r"\bsqrt_rn\s*\(", "", "tl.sqrt_rn(x): tl.sqrt(x), one instruction of the special-function unit, 1 ulp"),
    (r"\bdiv_rn\s*\(", "", "tl.div_rn(a, b): a / b, 2 ulp"),
    (
        r"(?<![/*])/(?![/*=])|\b__f(?:div|rcp)_rn\s*\(",
        "a / b: __fdividef(a, b), 2 ulp, or a product with one reciprocal for all elements that share b, or a constant's",
        "a / b: libdevice.fast_dividef(a, b), 2 ulp, or a product with one reciprocal for all elements that share b",
    ),
    (
        r"\w\s*%\s*\w",
        *2
        * (
            "i % n: a mask where n is a power of two, or an index that is carried along instead of divided anew",
        ),
    ),
)
"""What is written, and the cheaper equivalent in CUDA and in Triton, dearest first: to a few units in float32's last place, where
tanh, erf and log count by their absolute error."""
_ROUGH = (r"\btanhf?\s*\(", "tanh: tanh.approx.f32, one instruction, right to 11 bits")
"""For tasks in 16 bits."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    doubles = hot.count("fp64", "dmma")
    doubles = 0.0 if doubles / hot.instructions < _STRAY or scene.profile.in_double else doubles
    results = max(hot.bytes_moved("global_store"), hot.bytes_moved("global_load")) / 4
    slow = hot.count("slow_path")
    functions = (
        hot.count("special")
        or slow
        or (results if _WITHOUT_UNIT.search(_device_code(scene.profile.source)) else 0.0)
    )
    gone: dict[str, float] = {}
    if doubles:
        gone = {"fp64": doubles * 2 / 3, "convert": hot.count("convert"), "alu": hot.count("alu") / 2}
    elif functions and not hot.count(*MATRIX):
        kinds = ("fma32", "alu", "convert", "branch", "call", "slow_path")
        around = hot.count(*kinds)
        expanded = (
            hot.count("convert", "branch", "call", "slow_path") > 0 and hot.count("fma32") >= 4 * functions
        )
        surplus = min(max(0.0, around - _CHEAP * functions), _DEAR * functions) if expanded else 0.0
        part = min(1.0, max(surplus, _SLOW * slow) / around) if around else 0.0
        gone = {kind: part * hot.count(kind) for kind in kinds} | {"special": functions / 3}
    share = energy_saved(scene, hot, gone) if gone else 0.0
    if share < _NOTICEABLE:
        return None
    what = (
        f"{doubles:.0f} double-precision instructions"
        if doubles
        else f"{functions:.0f} special functions and their expansions"
    )
    cheaper = _cheaper(scene.profile.source)
    first = (
        "write constants as floats (0.5f) and compute in float32"
        if doubles
        else "use the cheapest form that the tolerance allows"
    )
    return Match(
        evidence=(
            Evidence("double-precision instructions in the hot code", doubles, 0)
            if doubles
            else Evidence("special functions in the hot code", functions),
            Evidence("hot instructions", round(hot.instructions)),
        ),
        cause=f"{what} take {share:.0%} of the kernel's energy beyond what cheaper forms would",
        advice=(
            first + (f": {'; '.join(cheaper[:3])}" if cheaper else ""),
            "move what does not depend on the element out of the loop",
        ),
        saved_share=share,
        basis="instructions that cheaper forms do without, doubles and special functions at three times an ordinary one's energy",
        where=scene.code.get("where", {}).get("fp64" if doubles else "special", ""),
    )


def _cheaper(source: str) -> list[str]:
    """Forms for what the source has, in its language."""
    language, code = (1 if _triton(source) else 0), _device_code(source)
    halves = re.search(r"bfloat16|float16|\bhalf\b", source)
    rough = [_ROUGH[1]] if halves and re.search(_ROUGH[0], code) else []
    return rough + [
        forms[language] for pattern, *forms in _CHEAPER if forms[language] and re.search(pattern, code)
    ]


def _device_code(source: str) -> str:
    """What runs on the device, without comments, in which a slash divides nothing; everything where no kernel is found."""
    if _triton(source):
        return _jitted(source) or re.sub(r"#[^\n]*", "", source)
    plain = re.sub(r"//[^\n]*|/\*.*?\*/|#[^\n]*", "", source, flags=re.S)
    return "\n".join(map(_body, re.split(r"\b__(?:global|device)__\b", plain)[1:])) or plain


def _jitted(source: str) -> str:
    try:
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return ""
    return "\n".join(
        ast.unparse(node) for node in functions if any("jit" in ast.unparse(by) for by in node.decorator_list)
    )


def _body(text: str) -> str:
    """A C++ function's, from its head on."""
    depth = 0
    for brace in re.finditer(r"[{};]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[: brace.end()]
    return text


def _triton(source: str) -> bool:
    return "import triton" in source


DIAGNOSTIC = Diagnostic(
    name="energy_costly_math",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"doubles, divisions and roots that are right to the last bit, or special functions with more than {_CHEAP} "
    f"instructions around each, whose cheaper forms would save {_NOTICEABLE:.0%} of the kernel's energy",
    remedy="floats; quick division, exp2 and other forms inside the tolerance, in the words of CUDA or Triton",
    gain_basis="the energy of the instructions that cheaper forms do without",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
