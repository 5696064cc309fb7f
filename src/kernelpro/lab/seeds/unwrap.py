"""Splits the compiler's module into imports, kernels and the function that calls them.

In the module, kernels are strings passed to `async_compile`. Here they become Triton functions of the
candidate and C++ functions of one library.
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
"""The name of the C++ library in the candidate."""
_PREFIX = re.compile(r"^\s*#include\s*<torch/csrc/inductor/cpp_prefix\.h>\s*$", re.MULTILINE)
_TORCH_CALLS = {
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "convolution": "torch.convolution",
}
"""Public names in torch of library calls; other calls keep the compiler's name."""
_AUTOTUNED = ("pointwise", "reduction", "persistent_reduction")
"""Decorators of kernels that autotune on their first call."""
_RANDOM = re.compile(
    r"\baten\.(rand\w*|bernoulli)|\binductor_seeds?\b|\bnormalized_rand_cpu\b|\brandn_cpu\b|\btl\.randn?\b"
)


@dataclass
class ModuleParts:
    """The parts of the compiler's module."""

    imports: list[str] = field(default_factory=list)
    """Import statements and aliases that the other parts use."""
    triton: list[str] = field(default_factory=list)
    cpp: list[str] = field(default_factory=list)
    arguments: tuple[str, ...] = ()
    body: str = ""
    """The body of the function that calls the kernels."""


def split_module(
    code: str, constants: Iterable[str], settings: Mapping[str, Mapping[str, int]] = {}
) -> ModuleParts:
    """Split the compiler's module. Raises NoSeed if it contains unsupported code.

    `settings`: the configuration that the compiler chose for each autotuned Triton kernel.
    """
    if _RANDOM.search(code):
        raise NoSeed("the model draws random numbers")
    module = ast.parse(code)
    parts = ModuleParts()
    names: list[str] = []
    preamble: list[ast.stmt] = []
    for statement in module.body:
        if kernel := _kernel(statement):
            name, kind, text = kernel
            names.append(name)
            if kind == "triton":
                preamble += _add_triton_kernel(
                    parts, name, _with_fixed_config(text, name, settings[name]) if name in settings else text
                )
            else:
                parts.cpp.append(_rename_cpp_kernel(name, text))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_alias(statement):
            preamble.append(statement)
    _add_calls(parts, module, code, [name for name in names if parts.cpp])
    defined = {*constants, *names, *parts.arguments, LIBRARY}
    parts.imports = _required_imports(preamble, parts, defined)
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
        raise NoSeed(f"the compiler generated a kernel of an unsupported kind ({kind})")
    texts = [
        a.value for a in statement.value.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
    ]
    return ast.unparse(statement.targets[0]), kind, texts[-1]


def _is_alias(statement: ast.stmt) -> bool:
    """Whether a statement is an alias such as `aten = torch.ops.aten`."""
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Attribute)


def _with_fixed_config(text: str, name: str, settings: Mapping[str, int]) -> str:
    """The kernel with a fixed configuration: it is not autotuned again, and readers see its settings."""
    function = next(s for s in ast.parse(text).body if isinstance(s, ast.FunctionDef) and s.name == name)
    call = function.decorator_list[0]
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in [
        f"triton_heuristics.{kind}" for kind in _AUTOTUNED
    ]:
        return text
    preserved = {
        k.arg: ast.get_source_segment(text, k.value)
        for k in call.keywords
        if k.arg in ("filename", "triton_meta", "inductor_meta")
    }
    arguments = {"config": dict(settings)} | preserved
    lines = text.splitlines()
    lines[call.lineno - 1 : call.end_lineno] = [
        "@triton_heuristics.fixed_config(",
        *(f"    {k}={v}," for k, v in arguments.items()),
        ")",
    ]
    return "\n".join(lines)


def _add_triton_kernel(parts: ModuleParts, name: str, text: str) -> list[ast.stmt]:
    """Add a kernel with its decorators, and its helper functions under unique names. Returns its imports."""
    for helper in (s.name for s in ast.parse(text).body if isinstance(s, ast.FunctionDef) and s.name != name):
        text = re.sub(rf"\b{helper}\b", f"{name}_{helper.lstrip('_')}", text)
    parsed = ast.parse(text)
    head = [s for s in parsed.body if not isinstance(s, ast.FunctionDef)]
    for function in (s for s in parsed.body if isinstance(s, ast.FunctionDef)):
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        parts.triton.append("\n".join(text.splitlines()[first - 1 : function.end_lineno]))
    return head


def _rename_cpp_kernel(name: str, text: str) -> str:
    """The C++ function, renamed from `kernel` to its own name and without the include that all share."""
    renamed, count = re.subn(r'(extern\s*"C"\s+void\s+)kernel\(', rf"\1{name}(", _PREFIX.sub("", text))
    if count != 1:
        raise NoSeed(f"{name}: expected one C++ function")
    return re.sub(r'extern\s*"C"\s+void\s+', 'extern "C" void ', renamed).strip("\n")


def _add_calls(parts: ModuleParts, module: ast.Module, code: str, native: list[str]) -> None:
    """Add the function `call`: the names of its arguments, and its body with comments."""
    functions = [
        node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == "call"
    ]
    if len(functions) != 1:
        raise NoSeed("the compiler's module does not have exactly one function `call`")
    statements = functions[0].body
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
        r"\bextern_kernels\.(\w+)", lambda m: f"torch.{m[1]}" if m[1] in _TORCH_CALLS else m[0], body
    )


def _required_imports(preamble: list[ast.stmt], parts: ModuleParts, defined: set[str]) -> list[str]:
    """The statements of the preamble that the calls and kernels use. Raises NoSeed for undefined names."""
    local = _bound_names(ast.parse(parts.body))
    used = _read_names(ast.parse(parts.body)) - local
    kernels = [ast.parse(text) for text in parts.triton]
    for kernel in kernels:
        used |= _read_names(kernel) - _bound_names(kernel)
    used -= {node.name for kernel in kernels for node in kernel.body if isinstance(node, ast.FunctionDef)}
    required: list[str] = []
    for statement in reversed(preamble):
        text = ast.unparse(statement)
        binds = _bound_names(statement)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            statement.names = [
                alias for alias in statement.names if (alias.asname or alias.name).split(".")[0] in used
            ]
            text = ast.unparse(statement) if statement.names else ""
        elif binds and not binds & used:
            text = ""
        if text and text not in required:
            required.append(text)
            used |= _read_names(statement)
            defined |= binds
    if unknown := sorted(used - defined - set(vars(builtins)) - {"torch", "__file__"}):
        raise NoSeed(f"the compiler's code uses {', '.join(unknown[:3])}, which it does not define")
    return required[::-1]


def _read_names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bound_names(node: ast.AST) -> set[str]:
    bound = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            bound.add(n.id)
        elif isinstance(n, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in n.names}
        elif isinstance(n, ast.arg):
            bound.add(n.arg)
    return bound
