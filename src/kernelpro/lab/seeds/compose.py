"""Composes a candidate from the reference's class and from the kernels and calls that the compiler wrote."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import torch

from kernelpro.lab.seeds.capture import (
    MODES,
    CapturedGraph,
    NoSeed,
    capture,
    capture_from_calls,
    recording_graph_calls,
)
from kernelpro.lab.seeds.unwrap import LIBRARY, ModuleParts, split_module
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

_INPUT_FUNCTIONS = ("get_inputs", "get_init_inputs")
_LIBRARY_CALL = re.compile(r"(?:torch|aten|extern_kernels|torch\.ops\.\w+)\.(\w+)(?:\.\w+)?\(")
_DECLARE_WEIGHT = '''\
def own(module, name, shape, dtype):
    """Declare a weight under its dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module._modules[part]
    weight = torch.empty(shape, dtype=dtype)
    module.register_parameter(last, torch.nn.Parameter(weight, requires_grad=False))'''
_NOT_LIBRARY_CALLS = {"_DeviceGuard", "set_device"}


def seed_source(reference: Reference, variant: str) -> str:
    """The source of a baseline: torch.compile's code, or the unchanged reference. Raises NoSeed."""
    if variant not in MODES:
        return reference_seed(reference)
    return compose_candidate(capture(reference, variant), reference.task, variant, reference.device)


def seed_from_first_call(reference: Reference, variant: str, compiled: Any, values: list[Any]) -> str:
    """Call a compiled model for the first time, which compiles it, and return its code as a candidate.

    Returns an empty string if the code is not one graph. Errors of the compiled model propagate.
    """
    from torch._dynamo.utils import counters

    before = _trace_counts(counters)
    with recording_graph_calls() as graph_calls:
        result = compiled(*values)
    try:
        if _trace_counts(counters) != (before[0] + 1, before[1]):
            return ""
        captured = capture_from_calls(reference, compiled._orig_mod, values, result, graph_calls)
        return compose_candidate(captured, reference.task, variant, reference.device)
    except Exception:  # the baseline is valid without a seed; `study` reports the reason
        return ""


def _trace_counts(counters: Any) -> tuple[int, int]:
    """The number of traced frames and of graph breaks. A data-dependent branch splits a frame."""
    return counters["frames"]["total"], counters["graph_break"].total()


def compose_candidate(captured: CapturedGraph, task: Task, variant: str, device: str) -> str:
    """The compiler's code as one file.

    It has imports, the reference if its parameters are needed, kernels, their calls, and `ModelNew`.
    """
    parts = split_module(captured.code, captured.constants, captured.kernel_configs)
    if len(parts.arguments) != len(captured.arguments):
        raise NoSeed(
            f"the compiler's code takes {len(parts.arguments)} arguments and was given "
            f"{len(captured.arguments)}"
        )
    stateful = not captured.weights and any(text.startswith("self.") for text in captured.arguments)
    own = ["import os", "import torch", "from kernelpro import runtime"] if parts.cpp else ["import torch"]
    imports = sorted(
        dict.fromkeys([*own, *parts.imports]), key=lambda text: not text.startswith(("import", "from"))
    )
    first, text = _reference_text(task) if stateful else ([], "")
    sections = [_header_comment(variant, device, parts), "\n".join([*first, *imports])]
    sections += [text] if text else []
    sections += [f"{name} = {value}" for name, value in captured.constants.items()]
    sections += [_library(parts.cpp)] if parts.cpp else []
    sections += [_DECLARE_WEIGHT] if captured.weights else []
    sections += [
        *parts.triton,
        _call_function(parts),
        _model(task.entry if stateful else "", captured, device),
    ]
    return "\n\n".join(sections) + "\n"


def reference_seed(reference: Reference) -> str:
    """The reference's source as a candidate. Raises NoSeed if that would create a different model."""
    task = reference.task
    title = "# The reference as it is: PyTorch's own kernels, none of them written here."
    # a candidate is called by position
    keywords, count = reference.keyword_only, len(reference.keyword_only)
    inputs = f"*inputs[:-{count}]" if keywords else "*inputs"
    inputs += "".join(f", {name}=inputs[{place - count}]" for place, name in enumerate(keywords))
    forward = "    def forward(self, *inputs):\n        return "
    if task.form == "function":
        body = f"class ModelNew(torch.nn.Module):\n{forward}{task.entry}({inputs})"
    else:
        call = f"{forward}super().forward({inputs})" if keywords else "    pass"
        body = f"class ModelNew({task.entry}):\n{call}"
    if not reference.can_rebuild_from_init_inputs():
        raise NoSeed(
            "the class, constructed with `init_inputs`, has weights of other names or shapes: pass the"
            " constructor's arguments as init_inputs"
        )
    first, text = _reference_text(task)
    return "\n\n".join((title, "\n".join([*first, "import torch"]), text, body)) + "\n"


def _header_comment(variant: str, device: str, parts: ModuleParts) -> str:
    mode = "" if variant == "compile" else f" ({variant.replace('_', '-')})"
    lines = [
        f"# Written by torch.compile{mode} of torch {torch.__version__} for {device}: kernels and order of "
        "calls."
    ]
    if library_calls := sorted(set(_LIBRARY_CALL.findall(parts.body)) - _NOT_LIBRARY_CALLS):
        lines.append(f"# library-calls: {', '.join(library_calls)}")
    return "\n".join(lines)


def _reference_text(task: Task) -> tuple[list[str], str]:
    """The task's `__future__` imports, and its source without the input functions.

    Raises NoSeed if the source imports other files of the task: a candidate is a single file, and its sandbox
    hides the user's folders.
    """
    for name in sorted(task.files):
        root = name.partition("/")[0].removesuffix(".py")
        if re.search(rf"^\s*(?:from|import)\s+{re.escape(root)}\b", task.source, re.MULTILINE):
            raise NoSeed(f"the reference imports {root}, and a candidate is one file")
    lines: list[str | None] = list(task.source.splitlines())
    first: list[str] = []
    for node in ast.parse(task.source).body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if future or (isinstance(node, ast.FunctionDef) and node.name in _INPUT_FUNCTIONS):
            first += [ast.unparse(node)] if future else []
            lines[node.lineno - 1 : node.end_lineno] = [None] * (
                (node.end_lineno or node.lineno) - node.lineno + 1
            )
    return first, re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()


def _library(kernels: list[str]) -> str:
    """One library with all C++ kernels, built with the compiler's flags and headers."""
    text = "\n\n".join(["#include <torch/csrc/inductor/cpp_prefix.h>", *kernels])
    if '"""' in text:
        raise NoSeed("the compiler's C++ contains triple quotes")
    flags = "".join(f'    "{flag}",\n' for flag in _flags())
    return (
        "TORCH = os.path.dirname(torch.__file__)\n"
        'FLAGS = [\n    f"-I{TORCH}/include",\n    f"-L{TORCH}/lib",\n'
        f'    "-Wl,--no-as-needed",\n    "-ltorch_cpu",\n    "-lc10",\n{flags}]\n'
        f'{LIBRARY} = runtime.cpp(r"""\n{text}\n""", flags=FLAGS)'
    )


def _flags() -> list[str]:
    """The compiler's flags that `runtime.cpp` lacks: arithmetic, C++ standard, vector extensions."""
    try:
        from torch._inductor.cpp_builder import CppTorchOptions
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        isa = pick_vec_isa()
        chosen = [
            f
            for f in CppTorchOptions(vec_isa=isa).get_cflags()
            if re.match(r"std=|f(?!PIC|openmp|no-omit)", f)
        ]
        macros = [f"D{name.strip()}" for name in isa.build_macro()]
        arch = isa.build_arch_flags().split()
    except (ImportError, AttributeError) as error:
        raise NoSeed(f"this version of torch builds C++ in an unsupported way ({error})") from None
    return [f"-{flag}" for flag in (*chosen, *macros)] + arch


def _call_function(parts: ModuleParts) -> str:
    return f"def compiled_call({', '.join(parts.arguments)}):\n{textwrap.indent(parts.body, '    ')}"


def _model(base: str, captured: CapturedGraph, device: str) -> str:
    """`ModelNew`. `base`: the reference's class, which creates the parameters; empty if it is not needed."""
    lines = [f"class ModelNew({base or 'torch.nn.Module'}):"]
    if not base:
        lines += ["    def __init__(self, *init):", "        super().__init__()"]
        lines += [f"        own(self, {name!r}, {kind})" for name, kind in captured.weights.items()] + [""]
    elif captured.attributes and device != "cpu":
        lines += ["    def __init__(self, *init):", "        super().__init__(*init)"]
        lines += [f'        {text} = {text}.to("{device}")' for text in captured.attributes] + [""]
    lines += [f"    def forward({', '.join(('self', *captured.parameters))}):"]
    lines += [
        f"        outputs = compiled_call({', '.join(captured.arguments)})",
        f"        return {captured.result}",
    ]
    return "\n".join(lines)
