"""The Python module around the kernels: it declares parameters under the reference's names, allocates outputs
and temporaries, and calls the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelpro.authors.author import NoProposal
from kernelpro.authors.cuda_graph import in_cuda_graph
from kernelpro.authors.playbook.ir.stages import Program, Stage, Tensor
from kernelpro.authors.playbook.schedule.design import Design

Tunables = dict[str, tuple[int, Sequence[int]]]
"""Module-level constants that can be tuned, by name: current value, and values to try."""
ADD_PARAMETER = '''

def add_parameter(module, name, shape, dtype):
    """Registers a parameter under a dotted name; creates missing submodules."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            setattr(module, part, nn.Module())
        module = getattr(module, part)
    setattr(module, last, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))
'''


def argument_name(tensor: Tensor) -> str:
    """The name of a tensor in the generated code."""
    return f"in_{tensor.name}" if tensor.role == "input" else tensor.name


def module_source(
    program: Program,
    design: Design,
    title: str,
    kernels: str,
    call: Sequence[str],
    tunables: Mapping[str, tuple[int, Sequence[int]]] = {},
) -> str:
    """The candidate's complete file.

    `kernels` is everything between the imports and the module class. `call` holds the lines of `forward` that
    compute the outputs from the tensors; `argument_name` gives the tensors' variables.
    """
    parameters = [t for t in program.tensors if t.role == "parameter"]
    lines = [*_docstring(program, title), design.to_comment(), *_library_comment(program)]
    lines += ["", "import torch", "import torch.nn as nn", ""]
    for name, (value, choices) in tunables.items():
        lines.append(f"{name} = {value}  # tune: {', '.join(map(str, choices))}")
    lines += [kernels.strip("\n")]
    lines += [ADD_PARAMETER.rstrip("\n")] if parameters else []
    lines += ["", "", "class ModelNew(nn.Module):", "    def __init__(self, *args):"]
    lines += ["        super().__init__()"]
    for t in parameters:
        lines.append(f"        add_parameter(self, {t.path!r}, {tuple(t.shape)}, torch.{t.dtype})")
    lines += ["", "    def forward(self, *inputs):"]
    lines += [f"        {line}" for line in (*_tensor_definitions(program), *call)]
    results = ", ".join(program.outputs)
    lines += [f"        return {results}" if program.single_output else f"        return ({results},)"]
    text = "\n".join(lines) + "\n"
    return (in_cuda_graph(text) or text) if design.graph else text


def require_whole_stores(stages: Iterable[Stage]) -> None:
    """Raises NoProposal if the stages have guarded stores; for kernels that do not support them."""
    if any(stage.has_guarded_stores for stage in stages):
        raise NoProposal("only the playbook's tiled products on a GPU can store a part of their results")


def library_lines(program: Program, stage: int) -> list[str]:
    """The library calls that run before a stage."""
    names = {tensor.name: argument_name(tensor) for tensor in program.tensors}
    calls = [call for call in program.library_calls if call.before == stage]
    return [f"{call.tensor} = {call.text.format(**names)}.contiguous()" for call in calls]


def _docstring(program: Program, title: str) -> list[str]:
    if not program.rewrites:
        return [f'"""{title}"""']
    steps = list(dict.fromkeys(f"- {step.rule}: {step.reason}." for step in program.rewrites))
    return [f'"""{title}', "", "Algebra:", *steps, '"""']


def _library_comment(program: Program) -> list[str]:
    names = ", ".join(sorted({call.op for call in program.library_calls}))
    return [f"# library-calls: {names}"] if names else []


def _tensor_definitions(program: Program) -> list[str]:
    """Assignments of all tensors; new ones are allocated on the device of the first input or parameter."""
    by_role: dict[str, list[Tensor]] = {
        role: [] for role in ("input", "parameter", "output", "temporary", "library")
    }
    for tensor in program.tensors:
        by_role[tensor.role].append(tensor)
    arguments = [tensor for tensor in program.tensors if tensor.role in ("input", "parameter")]
    device = f", device={argument_name(arguments[0])}.device" if arguments else ""
    lines = [f"{argument_name(t)} = inputs{subscript(t.path)}.contiguous()" for t in by_role["input"]]
    lines += [f"{argument_name(t)} = {attribute(t.path)}" for t in by_role["parameter"]]
    for t in (*by_role["output"], *by_role["temporary"]):
        lines.append(f"{t.name} = torch.empty({tuple(t.shape)}, dtype=torch.{t.dtype}{device})")
    return lines


def attribute(path: str) -> str:
    """Python code that accesses a parameter. Parts of a dotted name, as in `layers.0.weight`, need not be
    identifiers."""
    text = "self"
    for part in path.split("."):
        text = f"{text}.{part}" if part.isidentifier() else f"getattr({text}, {part!r})"
    return text


def subscript(path: str) -> str:
    """Python code that accesses an input by its path."""
    return "".join(f"[{part}]" if part.isdigit() else f"[{part!r}]" for part in path.split("."))
