"""The candidate around a recurrent kernel: torch computes all other operators of the graph."""

from __future__ import annotations

from typing import Any

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen.python_module import ADD_PARAMETER, attribute, subscript
from kernelpro.authors.playbook.recurrent.kernel import kernel_source
from kernelpro.authors.playbook.recurrent.network import Network, find_network
from kernelpro.records import Graph, Node

PLAN = (
    "One persistent kernel runs all steps of the recurrent layers, with the weights in registers; torch "
    "computes the rest."
)
_VALUE = "v_"


def recurrent_source(graph: Graph) -> str | None:
    """The candidate for a graph with a recurrent operator; None if the graph has none. Raises NoProposal."""
    network = find_network(graph)
    return _module(graph, network) if network else None


def _module(graph: Graph, network: Network) -> str:
    parameters = [node for node in graph.nodes if node.op == "parameter"]
    lines = [
        '"""Written by the playbook in CUDA C++: a persistent kernel for recurrent layers."""',
        "",
        "import torch",
        "import torch.nn as nn",
        "",
        "from kernelpro import runtime",
        "",
        f'lib = runtime.cuda(\n    r"""\n{kernel_source(network)}""",\n    flags=[],\n)',
        f"BLOCKS = {network.layers_at_once * network.directions * network.blocks}",
        *_recurrent_function(network),
        ADD_PARAMETER.rstrip("\n"),
        "",
        "",
        "class ModelNew(nn.Module):",
        "    def __init__(self, *args):",
        "        super().__init__()",
    ]
    for p in parameters:
        lines.append(f"        add_parameter(self, {p.where!r}, {tuple(p.shape)}, torch.{p.dtype})")
    lines += ["", "    def forward(self, *inputs):"]
    lines += [f"        {line}" for line in _statements(graph, network)]
    results = ", ".join(f"{_VALUE}{name}.contiguous()" for name in graph.outputs)
    lines += [f"        return {results}" if graph.single else f"        return ({results},)"]
    return "\n".join(lines) + "\n"


def _recurrent_function(network: Network) -> list[str]:
    """Lines of a Python function with the inputs and results of torch's operator, which launches the
    kernel."""
    at_once, directions, hidden = network.layers_at_once, network.directions, network.hidden
    rows, batch, steps = network.gates * hidden, network.batch, network.steps
    is_lstm = network.cell == "lstm"
    per_layer = len(network.weights[0])
    lines = [
        "",
        "",
        "def recurrent(x, states, weights):",
        '    """Returns the outputs of the last layer and the last states of all layers."""',
        f"    if tuple(x.shape) != {network.input_shape}:  # the kernel supports one shape",
        f"        {_library_call(network)}",
        *(["    x = x.transpose(0, 1)"] if network.batch_first else []),
        f"    parts = [weights[i:i + {per_layer}] for i in range(0, len(weights), {per_layer})]",
        "    last = [torch.empty_like(state) for state in states]",
        f"    for first in range(0, {network.layers}, {at_once}):",
        f"        layers = min({at_once}, {network.layers} - first)",
        f"        begin, end = first * {directions}, (first + layers) * {directions}",
        "        group = parts[begin:end]",
        f"        matrix = torch.cat([w[0] for w in group[:{directions}]])",
    ]
    if network.has_biases:
        lines += [
            f"        bias = torch.cat([w[2] for w in group[:{directions}]])",
            "        projected = nn.functional.linear(x, matrix, bias).contiguous()",
            "        state_bias = torch.stack([w[3] for w in group])",
            "        below_bias = torch.stack([w[2] for w in group])[1:]",
        ]
    else:
        lines += [
            "        projected = nn.functional.linear(x, matrix).contiguous()",
            f"        state_bias = x.new_zeros(len(group), {rows})",
            "        below_bias = state_bias[1:]",
        ]
    follows = at_once > 1
    below = "torch.stack([w[0] for w in group[1:]]) if layers > 1 else matrix" if follows else "matrix"
    cell = (
        ("states[1][begin:end].contiguous()", "last[1][begin:end]")
        if is_lstm
        else ("state", "last[0][begin:end]")
    )
    lines += [
        "        from_state = torch.stack([w[1] for w in group])",
        f"        from_below = {below}",
        "        state = states[0][begin:end].contiguous()",
        f"        cell = {cell[0]}",
        f"        shape = (layers, {steps}, {batch}, {directions * hidden})",
        "        output = torch.full(shape, -1, dtype=torch.int32, device=x.device).view(torch.float32)",
        "        lib.run(projected, from_state, from_below, state_bias, below_bias, state, cell, output,",
        f"                last[0][begin:end], {cell[1]}, end - begin)",
        "        x = output[-1]",
    ]
    lines += ["    x = x.transpose(0, 1)"] if network.batch_first else []
    return [*lines, "    return (x, *last)"]


def _library_call(network: Network) -> str:
    states = "list(states)" if network.cell == "lstm" else "states[0]"
    options = ", ".join(repr(option) for option in network.node.args[3:9])
    return f"return torch.ops.{network.node.op}(x, {states}, list(weights), {options})"


def _statements(graph: Graph, network: Network) -> list[str]:
    lines = []
    for node in graph.nodes:
        name = f"{_VALUE}{node.name}"
        if node.op == "input":
            lines.append(f"{name} = inputs{subscript(node.where)}")
        elif node.op == "parameter":
            lines.append(f"{name} = {attribute(node.where)}")
        elif node is network.node:
            weights = ", ".join(_VALUE + weight for group in network.weights for weight in group)
            states = ", ".join(_VALUE + state for state in network.states)
            lines.append(f"{name} = recurrent({_VALUE}{network.source}, ({states},), ({weights},))")
        elif node.op == "getitem":
            lines.append(f"{name} = {_VALUE}{node.args[0]['value']}[{node.args[1]}]")
        else:
            lines.append(f"{name} = {_call(node)}")
    return lines


def _call(node: Node) -> str:
    if not node.op.startswith("aten.") or "rand" in node.op or "dropout" in node.op:
        raise NoProposal(f"the playbook does not support {node.op} beside recurrent layers")
    arguments = [_argument(value) for value in node.args]
    arguments += [_option(name, value) for name, value in node.kwargs.items() if value is not None]
    return f"torch.ops.{node.op}({', '.join(arguments)})"


def _option(name: str, value: Any) -> str:
    if name == "device":
        return "device=inputs[0].device"
    return f"dtype=torch.{value}" if name == "dtype" else f"{name}={_argument(value)}"


def _argument(value: Any) -> str:
    if isinstance(value, dict) and "value" in value:
        return f"{_VALUE}{value['value']}"
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, str):
        raise NoProposal(
            "the playbook does not support devices or types as arguments beside recurrent layers"
        )
    return repr(value)
