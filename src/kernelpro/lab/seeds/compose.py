"""A candidate from the compiler's parts: the reference for its parameters, the kernels, the calls, `ModelNew`."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import torch

from kernelpro.lab.seeds.capture import MODES, Captured, NoSeed, capture, described, watching
from kernelpro.lab.seeds.unwrap import LIBRARY, Parts, unwrap
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

_RECIPE = ("get_inputs", "get_init_inputs")
_OUTSIDE = re.compile(r"(?:torch|aten|extern_kernels|torch\.ops\.\w+)\.(\w+)(?:\.\w+)?\(")
_OWN = '''\
def own(module, name, shape, dtype):
    """Declare a weight under its dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module._modules[part]
    module.register_parameter(last, torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))'''
_NO_LIBRARY = {"_DeviceGuard", "set_device"}


def candidate(reference: Reference, variant: str) -> str:
    """A baseline as a candidate: what torch.compile makes of the task, or the reference as it is; raises NoSeed."""
    if variant not in MODES:
        return as_it_is(reference)
    return put_together(capture(reference, variant), reference.task, variant, reference.device)


def of_call(reference: Reference, variant: str, compiled: Any, values: list[Any]) -> str:
    """Call what torch.compile makes of a model for the first time, which is where it compiles; its code as a candidate, or nothing
    where it is not all in one graph. What is raised, the compiled model raised."""
    from torch._dynamo.utils import counters

    before = _traced(counters)
    with watching() as seen:
        result = compiled(*values)
    try:
        if _traced(counters) != (before[0] + 1, before[1]):
            return ""
        captured = described(reference, compiled._orig_mod, values, result, seen)
        return put_together(captured, reference.task, variant, reference.device)
    except Exception:  # whatever cannot be written down: it is a baseline all the same, and who wants the code asks for the reason
        return ""


def _traced(counters: Any) -> tuple[int, int]:
    """Frames that the compiler has looked at (a branch on data makes two of one), and places where it gave up."""
    return counters["frames"]["total"], counters["graph_break"].total()


def put_together(captured: Captured, task: Task, variant: str, device: str) -> str:
    """The compiler's code as one file: imports, the reference where its parameters are needed, kernels, calls, the model."""
    parts = unwrap(captured.code, captured.constants, captured.settings)
    if len(parts.arguments) != len(captured.arguments):
        raise NoSeed(
            f"the compiler's code takes {len(parts.arguments)} arguments and was given {len(captured.arguments)}"
        )
    stateful = not captured.weights and any(text.startswith("self.") for text in captured.arguments)
    own = ["import os", "import torch", "from kernelpro import runtime"] if parts.cpp else ["import torch"]
    imports = sorted(
        dict.fromkeys([*own, *parts.imports]), key=lambda text: not text.startswith(("import", "from"))
    )
    first, text = _reference_text(task) if stateful else ([], "")
    sections = [_title(variant, device, parts), "\n".join([*first, *imports])]
    sections += [text] if text else []
    sections += [f"{name} = {value}" for name, value in captured.constants.items()]
    sections += [_library(parts.cpp)] if parts.cpp else []
    sections += [_OWN] if captured.weights else []
    sections += [*parts.triton, _calls(parts), _model(task.entry if stateful else "", captured, device)]
    return "\n\n".join(sections) + "\n"


def as_it_is(reference: Reference) -> str:
    """The reference's own text as a candidate; raises NoSeed where that makes another model than the one that was given."""
    task = reference.task
    title = "# The reference as it is: PyTorch's own kernels, none of them written here."
    if task.form == "function":
        body = f"class ModelNew(torch.nn.Module):\n    def forward(self, *inputs):\n        return {task.entry}(*inputs)"
    else:
        body = f"class ModelNew({task.entry}):\n    pass"
    if not reference.is_made_of_init_inputs():
        raise NoSeed(
            "constructed with `init_inputs`, its class has other weights; give what the module was constructed with"
        )
    first, text = _reference_text(task)
    return "\n\n".join((title, "\n".join([*first, "import torch"]), text, body)) + "\n"


def _title(variant: str, device: str, parts: Parts) -> str:
    mode = "" if variant == "compile" else f" ({variant.replace('_', '-')})"
    lines = [
        f"# Written by torch.compile{mode} of torch {torch.__version__} for {device}: kernels and order of calls."
    ]
    if outside := sorted(set(_OUTSIDE.findall(parts.body)) - _NO_LIBRARY):
        lines.append(f"# library-calls: {', '.join(outside)}")
    return "\n".join(lines)


def _reference_text(task: Task) -> tuple[list[str], str]:
    """The task's text without the recipe of its inputs; before it what must come first in a file."""
    lines: list[str | None] = list(task.source.splitlines())
    first: list[str] = []
    for node in ast.parse(task.source).body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if future or (isinstance(node, ast.FunctionDef) and node.name in _RECIPE):
            first += [ast.unparse(node)] if future else []
            lines[node.lineno - 1 : node.end_lineno] = [None] * (
                (node.end_lineno or node.lineno) - node.lineno + 1
            )
    return first, re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).strip()


def _library(kernels: list[str]) -> str:
    """One library of all C++ kernels, built as the compiler builds them: its flags, its headers."""
    text = "\n\n".join(["#include <torch/csrc/inductor/cpp_prefix.h>", *kernels])
    if '"""' in text:
        raise NoSeed("the compiler's C++ cannot be quoted in Python")
    flags = "".join(f'    "{flag}",\n' for flag in _flags())
    return (
        'TORCH = os.path.dirname(torch.__file__)\nFLAGS = [\n    f"-I{TORCH}/include",\n    f"-L{TORCH}/lib",\n'
        f'    "-Wl,--no-as-needed",\n    "-ltorch_cpu",\n    "-lc10",\n{flags}]\n'
        f'{LIBRARY} = runtime.cpp(r"""\n{text}\n""", flags=FLAGS)'
    )


def _flags() -> list[str]:
    """How the compiler builds for this machine: arithmetic, standard and vector extensions; `runtime.cpp` knows the rest."""
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
        raise NoSeed(f"this torch builds C++ in a way that is not known here ({error})") from None
    return [f"-{flag}" for flag in (*chosen, *macros)] + arch


def _calls(parts: Parts) -> str:
    return f"def compiled_call({', '.join(parts.arguments)}):\n{textwrap.indent(parts.body, '    ')}"


def _model(base: str, captured: Captured, device: str) -> str:
    """`base`: the reference's class, whose constructor makes the parameters; empty where none are needed."""
    lines = [f"class ModelNew({base or 'torch.nn.Module'}):"]
    if not base:
        lines += ["    def __init__(self, *init):", "        super().__init__()"]
        lines += [f"        own(self, {name!r}, {kind})" for name, kind in captured.weights.items()] + [""]
    elif captured.loose and device != "cpu":
        lines += ["    def __init__(self, *init):", "        super().__init__(*init)"]
        lines += [f'        {text} = {text}.to("{device}")' for text in captured.loose] + [""]
    lines += [f"    def forward({', '.join(('self', *captured.parameters))}):"]
    lines += [
        f"        outputs = compiled_call({', '.join(captured.arguments)})",
        f"        return {captured.result}",
    ]
    return "\n".join(lines)
