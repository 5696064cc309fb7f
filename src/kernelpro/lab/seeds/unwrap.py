"""The module that the compiler writes, taken apart: imports, kernels, and the sequence of calls.

Kernels are strings in it, handed to `async_compile`. Here they become what they are: Triton functions of the candidate,
and C++ functions of one library.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kernelpro.lab.seeds.capture import NoSeed

LIBRARY = "kernels"
"""What the candidate calls its C++ library."""
_PREFIX = re.compile(r"^\s*#include\s*<torch/csrc/inductor/cpp_prefix\.h>\s*$", re.MULTILINE)
_EXTERN = {
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "convolution": "torch.convolution",
}
"""Library calls under the names that people know; the others keep the compiler's."""
_TUNED = ("pointwise", "reduction", "persistent_reduction")
"""Decorators under which a kernel tries several configurations when it is first called."""
_RANDOM = re.compile(
    r"\baten\.(rand\w*|bernoulli)|\binductor_seeds?\b|\bnormalized_rand_cpu\b|\brandn_cpu\b|\btl\.randn?\b"
)


@dataclass
class Parts:
    imports: list[str] = field(default_factory=list)
    """Statements, those of the wrapper and of the kernels, each once, only what is used."""
    triton: list[str] = field(default_factory=list)
    cpp: list[str] = field(default_factory=list)
    arguments: tuple[str, ...] = ()
    body: str = ""
    """Of the function that calls the kernels."""


def unwrap(code: str, constants: Iterable[str], settings: Mapping[str, Mapping[str, int]] = {}) -> Parts:
    """The parts of the compiler's module; raises NoSeed where it holds something that is not known here. `settings`: what Triton
    kernels run with, of those that tried several."""
    if _RANDOM.search(code):
        raise NoSeed("the model draws random numbers")
    module = ast.parse(code)
    parts = Parts()
    names: list[str] = []
    preamble: list[ast.stmt] = []
    for statement in module.body:
        if kernel := _kernel(statement):
            name, kind, text = kernel
            names.append(name)
            if kind == "triton":
                preamble += _take_triton(
                    parts, name, _settled(text, name, settings[name]) if name in settings else text
                )
            else:
                parts.cpp.append(_take_cpp(name, text))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_alias(statement):
            preamble.append(statement)
    _take_calls(parts, module, code, [name for name in names if parts.cpp])
    defined = {*constants, *names, *parts.arguments, LIBRARY}
    parts.imports = _needed(preamble, parts, defined)
    return parts


def _kernel(statement: ast.stmt) -> tuple[str, str, str] | None:
    """(name, kind, text) of a statement `name = async_compile.kind(..., text, ...)`."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return None
    function = ast.unparse(statement.value.func)
    if not function.startswith("async_compile."):
        return None
    kind = function.removeprefix("async_compile.")
    if kind not in ("triton", "cpp_pybinding"):
        raise NoSeed(f"the compiler made a kernel of a kind that cannot be written down ({kind})")
    texts = [
        a.value for a in statement.value.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
    ]
    return ast.unparse(statement.targets[0]), kind, texts[-1]


def _is_alias(statement: ast.stmt) -> bool:
    """`aten = torch.ops.aten`: a name for something of torch."""
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Attribute)


def _settled(text: str, name: str, settings: Mapping[str, int]) -> str:
    """The kernel with one configuration: nobody has to look for it again, and one sees which it is."""
    function = next(s for s in ast.parse(text).body if isinstance(s, ast.FunctionDef) and s.name == name)
    call = function.decorator_list[0]
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in [
        f"triton_heuristics.{kind}" for kind in _TUNED
    ]:
        return text
    kept = {
        k.arg: ast.get_source_segment(text, k.value)
        for k in call.keywords
        if k.arg in ("filename", "triton_meta", "inductor_meta")
    }
    told = {"config": dict(settings)} | kept
    lines = text.splitlines()
    lines[call.lineno - 1 : call.end_lineno] = [
        "@triton_heuristics.fixed_config(",
        *(f"    {k}={v}," for k, v in told.items()),
        ")",
    ]
    return "\n".join(lines)


def _take_triton(parts: Parts, name: str, text: str) -> list[ast.stmt]:
    """Keep the kernel with its decorators, and functions that help it, under names of their own; its imports are returned."""
    for helper in (s.name for s in ast.parse(text).body if isinstance(s, ast.FunctionDef) and s.name != name):
        text = re.sub(rf"\b{helper}\b", f"{name}_{helper.lstrip('_')}", text)
    parsed = ast.parse(text)
    head = [s for s in parsed.body if not isinstance(s, ast.FunctionDef)]
    for function in (s for s in parsed.body if isinstance(s, ast.FunctionDef)):
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        parts.triton.append("\n".join(text.splitlines()[first - 1 : function.end_lineno]))
    return head


def _take_cpp(name: str, text: str) -> str:
    """The C++ function under its own name; what it includes comes once, before all of them."""
    found, count = re.subn(r'(extern\s*"C"\s+void\s+)kernel\(', rf"\1{name}(", _PREFIX.sub("", text))
    if count != 1:
        raise NoSeed(f"{name}: not one function, as kernels of the compiler are")
    return re.sub(r'extern\s*"C"\s+void\s+', 'extern "C" void ', found).strip("\n")


def _take_calls(parts: Parts, module: ast.Module, code: str, native: list[str]) -> None:
    """The function `call`: its arguments by name, and its lines with comments as they are."""
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(found) != 1:
        raise NoSeed("the compiler's module has no single function that calls the kernels")
    statements = found[0].body
    if statements and isinstance(statements[0], ast.Assign) and ast.unparse(statements[0].value) == "args":
        target = statements[0].targets[0]
        parts.arguments = tuple(ast.unparse(item) for item in getattr(target, "elts", [target]))
        statements = statements[1:]
    if statements and ast.unparse(statements[0]) == "args.clear()":
        statements = statements[1:]
    lines = code.splitlines()[statements[0].lineno - 1 : statements[-1].end_lineno]
    body = textwrap.dedent("\n".join(lines))
    for name in native:
        body = re.sub(rf"\b{name}\(", f"{LIBRARY}.{name}(", body)
    parts.body = re.sub(
        r"\bextern_kernels\.(\w+)", lambda m: f"torch.{m[1]}" if m[1] in _EXTERN else m[0], body
    )


def _needed(preamble: list[ast.stmt], parts: Parts, defined: set[str]) -> list[str]:
    """Of the preamble what the calls and kernels use, in order, each once. A name that nobody defines is the end."""
    local = _bound(ast.parse(parts.body))
    used = _read(ast.parse(parts.body)) - local
    kernels = [ast.parse(text) for text in parts.triton]
    for kernel in kernels:
        used |= _read(kernel) - _bound(kernel)
    used -= {node.name for kernel in kernels for node in kernel.body if isinstance(node, ast.FunctionDef)}
    kept: list[str] = []
    for statement in reversed(preamble):
        text = ast.unparse(statement)
        binds = _bound(statement)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            statement.names = [
                alias for alias in statement.names if (alias.asname or alias.name).split(".")[0] in used
            ]
            text = ast.unparse(statement) if statement.names else ""
        elif binds and not binds & used:
            text = ""
        if text and text not in kept:
            kept.append(text)
            used |= _read(statement)
            defined |= binds
    if unknown := sorted(used - defined - set(vars(builtins)) - {"torch", "__file__"}):
        raise NoSeed(f"the compiler's code uses {', '.join(unknown[:3])}, which it does not define itself")
    return kept[::-1]


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bound(node: ast.AST) -> set[str]:
    found = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            found.add(n.id)
        elif isinstance(n, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in n.names}
        elif isinstance(n, ast.arg):
            found.add(n.arg)
    return found
