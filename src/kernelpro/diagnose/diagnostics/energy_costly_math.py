"""Expensive arithmetic that memory hides: IEEE division, doubles and accurate functions cost energy."""

from __future__ import annotations

import ast
import re

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_saved
from kernelpro.diagnose.hot_code import MATRIX, STRAY_DOUBLES, HotCode
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence, InstructionKind

CHEAP = 8
"""Instructions around a special-function instruction in the cheapest form of a function."""
_ACCURATE = 24
"""Additional instructions of an accurate function: expf 8, a division 10, tanhf and powf 20 to 40."""
_IEEE = 8
"""Additional instructions of an IEEE division, reciprocal or root: corrections, and a test of the exponent
with a branch to a slow path, by which the machine code shows it."""
MIN_SAVED = 0.03
_WITHOUT_UNIT = re.compile(r"(?<!\w)(?:log(?:1p)?|sin|cos|tan)f?\s*\(")
"""Functions whose accurate versions do not use the special-function unit."""
_POWER = "pow(x, n) with a small n: products and square roots"
_MODULO = "i % n: a mask where n is a power of two, or an incremented index instead of a division"
_CHEAPER_FORMS = (
    (
        r"\b(?:tanhf?|erff?)\s*\(",
        "tanhf, erff: 1 - 2 / (exp2f(2.8854f * x) + 1), or 1 - exp2f of a polynomial, absolute error 1e-7",
        "tanh, erf: 1 - 2 / (tl.exp2(2.8854 * x) + 1), or 1 - tl.exp2 of a polynomial, absolute error 1e-7",
    ),
    (
        r"\blog(?:1p)?f?\s*\(",
        "logf(x): __logf(x), 3 ulp, 4e-7 near 1",
        "tl.log(x): libdevice.fast_logf(x), 3 ulp, 4e-7 near 1",
    ),
    (r"\bpowf?\s*\(", _POWER, _POWER),
    (
        r"\b(?:expf?|softmax)\s*\(",
        "expf(x): exp2f(x * 1.4427f), 2 ulp, with -ftz=true, the factor folded into an existing scale",
        "tl.exp(x): tl.exp2(x * 1.4427), 2 ulp, the factor folded into an existing scale",
    ),
    (
        r"\b(?:sin|cos|tan)f?\s*\(",
        "sinf(x), cosf(x): __sinf(x), __cosf(x), error 5e-7 between -pi and pi",
        "tl.sin(x), tl.cos(x): libdevice.fast_sinf(x), libdevice.fast_cosf(x), error 5e-7 between -pi and pi",
    ),
    (
        r"1(?:\.0*)?f?\s*/\s*(?:\w+\.)*sqrt",
        "1 / sqrtf(x): rsqrtf(x), 2 ulp",
        "1 / tl.sqrt(x): tl.rsqrt(x), 2 ulp",
    ),
    (
        r"\b(?:sqrtf?|__fsqrt_rn)\s*\(",
        "sqrtf(x): with -prec-sqrt=false one instruction of the special-function unit, 1 ulp",
        "",
    ),
    (r"\bsqrt_rn\s*\(", "", "tl.sqrt_rn(x): tl.sqrt(x), one instruction of the special-function unit, 1 ulp"),
    (r"\bdiv_rn\s*\(", "", "tl.div_rn(a, b): a / b, 2 ulp"),
    (
        r"(?<![/*])/(?![/*=])|\b__f(?:div|rcp)_rn\s*\(",
        "a / b: __fdividef(a, b), 2 ulp, or multiply by one reciprocal where b is shared or a constant",
        "a / b: libdevice.fast_dividef(a, b), 2 ulp, or multiply by one reciprocal for all elements that "
        "share b",
    ),
    (r"\w\s*%\s*\w", _MODULO, _MODULO),
)
"""A pattern in the source, and the cheaper form in CUDA and in Triton, most expensive first: accurate to a
few ulp of float32, for tanh, erf and log by absolute error."""
_APPROXIMATE_TANH = (r"\btanhf?\s*\(", "tanh: tanh.approx.f32, one instruction, accurate to 11 bits")
"""A form that is accurate enough for 16-bit tasks only."""
_HALF = re.compile(r"bfloat16|float16|\bhalf\b")


def _analyze(context: DiagnosticContext) -> Match | None:
    source = context.profile.source
    hot = hot_code(context)
    doubles = 0.0 if context.profile.is_double else hot.count("fp64", "dmma")
    if doubles / hot.instructions < STRAY_DOUBLES:
        doubles = 0.0
    functions = hot.count("special") or hot.count("slow_path")
    if not functions and _WITHOUT_UNIT.search(_device_code(source)):
        functions = max(hot.bytes_moved("global_store"), hot.bytes_moved("global_load")) / 4
    removed: dict[InstructionKind, float] = {}
    if doubles:
        removed = {"fp64": doubles * 2 / 3, "convert": hot.count("convert"), "alu": hot.count("alu") / 2}
    elif functions and not hot.count(*MATRIX):
        removed = _surplus_math(hot, functions)
    share = energy_saved(context, hot, removed) if removed else 0.0
    if share < MIN_SAVED:
        return None
    if doubles:
        instructions, first = (
            "double-precision instructions",
            "write float constants (0.5f) and compute in float32",
        )
        evidence = Evidence(f"{instructions} in the hot code", doubles, 0)
    else:
        instructions, first = (
            "special functions and their expansions",
            "use the cheapest form that the tolerance allows",
        )
        evidence = Evidence("special functions in the hot code", functions)
    cheaper = "; ".join(_cheaper_forms(source)[:3])
    return Match(
        evidence=(evidence, Evidence("hot instructions", round(hot.instructions))),
        cause=f"{doubles or functions:.0f} {instructions} in the hot code: cheaper forms would save "
        f"{share:.0%} of the kernel's energy",
        saved_share=share,
        basis="energy of the instructions that cheaper forms do not need; an FP64 or special-function "
        "instruction is estimated to cost three ordinary ones",
        where=context.line_of("fp64" if doubles else "special"),
        advice=(
            first + (f": {cheaper}" if cheaper else ""),
            "hoist what does not depend on the element out of the loop",
        ),
    )


def _surplus_math(hot: HotCode, functions: float) -> dict[InstructionKind, float]:
    """Instructions, by kind, that cheaper forms of these functions do not need."""
    expansion: tuple[InstructionKind, ...] = ("convert", "branch", "call", "slow_path")
    kinds: tuple[InstructionKind, ...] = ("fma32", "alu", *expansion)
    around = hot.count(*kinds)
    surplus = 0.0
    if hot.count(*expansion) > 0 and hot.count("fma32") >= 4 * functions:
        surplus = min(max(0.0, around - CHEAP * functions), _ACCURATE * functions)
    part = min(1.0, max(surplus, _IEEE * hot.count("slow_path")) / around) if around else 0.0
    return {kind: part * hot.count(kind) for kind in kinds} | {"special": functions / 3}


def _cheaper_forms(source: str) -> list[str]:
    """Cheaper forms of the functions in the source, in its language."""
    language, code = (1 if _is_triton(source) else 0), _device_code(source)
    forms = [forms[language] for pattern, *forms in _CHEAPER_FORMS if re.search(pattern, code)]
    if _HALF.search(source) and re.search(_APPROXIMATE_TANH[0], code):
        forms.insert(0, _APPROXIMATE_TANH[1])
    return list(filter(None, forms))


def _device_code(source: str) -> str:
    """The kernels without comments, whose slashes are no divisions; the whole source if it has no kernel."""
    if _is_triton(source):
        return _jit_functions(source) or re.sub(r"#[^\n]*", "", source)
    code = re.sub(r"//[^\n]*|/\*.*?\*/|#[^\n]*", "", source, flags=re.S)
    return "\n".join(map(_function_body, re.split(r"\b__(?:global|device)__\b", code)[1:])) or code


def _jit_functions(source: str) -> str:
    try:
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return ""
    return "\n".join(
        ast.unparse(node) for node in functions if any("jit" in ast.unparse(by) for by in node.decorator_list)
    )


def _function_body(text: str) -> str:
    """The first C++ function in a text that starts with its declaration."""
    depth = 0
    for brace in re.finditer(r"[{};]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[: brace.end()]
    return text


def _is_triton(source: str) -> bool:
    return "import triton" in source


DIAGNOSTIC = Diagnostic(
    name="energy_costly_math",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"doubles, IEEE divisions and roots, or special functions with more than {CHEAP} instructions "
    f"around each, whose cheaper forms would save {MIN_SAVED:.0%} of the kernel's energy",
    remedy="floats; fast division, exp2 and other forms within the tolerance, for CUDA or Triton",
    gain_basis="the energy of the instructions that cheaper forms do not need",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
