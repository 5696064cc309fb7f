"""The Python file around a kernel: parameters under the reference's names, tensors made, one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelpro.authors.playbook.ir.stages import Program, Tensor
from kernelpro.authors.playbook.schedule.design import Design

_OWN = '''

def _own(module, name, shape, dtype):
    """A parameter under a dotted name; the modules on the way are made as they are needed."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            setattr(module, part, nn.Module())
        module = getattr(module, part)
    setattr(module, last, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))
'''


def argument_name(tensor: Tensor) -> str:
    """What a kernel calls a tensor."""
    return f"in_{tensor.name}" if tensor.role == "input" else tensor.name


def module_source(
    program: Program,
    design: Design,
    title: str,
    head: str,
    call: Sequence[str],
    tunables: Mapping[str, tuple[int, Sequence[int]]] = {},
) -> str:
    """The whole file.

    `head` is everything between the imports and the module, the kernel's source first of all; `call` are lines inside
    `forward` that compute the outputs from the tensors, which are there under the names of `pointer`. A tunable is a
    module-level constant: its value and the values to try.
    """
    parameters = [t for t in program.tensors if t.role == "parameter"]
    lines = [f'"""{title}"""', design.to_comment(), "", "import torch", "import torch.nn as nn", ""]
    lines += [
        f"{name} = {value}  # tune: {', '.join(map(str, values))}"
        for name, (value, values) in tunables.items()
    ]
    lines += [head.strip("\n")]
    lines += [_OWN.rstrip("\n")] if parameters else []
    lines += [
        "",
        "",
        "class ModelNew(nn.Module):",
        "    def __init__(self, *arguments):",
        "        super().__init__()",
    ]
    lines += [f"        _own(self, {t.path!r}, {tuple(t.shape)}, torch.{t.dtype})" for t in parameters]
    lines += ["", "    def forward(self, *inputs):"]
    lines += [
        f"        {argument_name(t)} = inputs{_place(t.path)}.contiguous()"
        for t in program.tensors
        if t.role == "input"
    ]
    lines += [f"        {argument_name(t)} = {_attribute(t.path)}" for t in parameters]
    device = _device(program)
    for tensor in program.tensors:
        if tensor.role in ("output", "temporary"):
            lines.append(
                f"        {tensor.name} = torch.empty({tuple(tensor.shape)}, dtype=torch.{tensor.dtype}{device})"
            )
    lines += [f"        {line}" for line in call]
    results = ", ".join(program.outputs)
    lines += [f"        return {results}" if program.single_output else f"        return ({results},)"]
    return "\n".join(lines) + "\n"


def _attribute(where: str) -> str:
    """`layers.0.weight`: a dotted name need not be Python."""
    text = "self"
    for part in where.split("."):
        text = f"{text}.{part}" if part.isidentifier() else f"getattr({text}, {part!r})"
    return text


def _place(where: str) -> str:
    return "".join(f"[{part}]" if part.isdigit() else f"[{part!r}]" for part in where.split("."))


def _device(program: Program) -> str:
    """New tensors lie where the first input lies."""
    first = next((t for t in program.tensors if t.role in ("input", "parameter")), None)
    return f", device={argument_name(first)}.device" if first else ""
