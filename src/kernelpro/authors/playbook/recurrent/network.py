"""Reads a recurrent operator of a graph, and plans how many of its layers one launch computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelpro.authors.author import NoProposal
from kernelpro.records import Graph, Node

UNITS = 16
"""Hidden units per block: the rows of a tensor-core tile."""
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_MAX_BATCH = 16
_MAX_BLOCKS = 108
"""All blocks of a launch must be resident at the same time: an A100 has 108 multiprocessors."""
_MAX_WEIGHT_REGISTERS = 128
"""Registers of a thread that may hold weights."""
_THREAD_STEP = 128
"""The hidden size must be a multiple of this: 32 parts of a row of weights, each read in 16-byte accesses."""


@dataclass(frozen=True)
class Network:
    """A stack of recurrent layers."""

    cell: str
    """lstm, gru, rnn_tanh or rnn_relu."""
    node: Node
    source: str
    """The name of the input."""
    states: tuple[str, ...]
    """The names of the initial states: h, and for an LSTM also c."""
    weights: tuple[tuple[str, ...], ...]
    """For each layer and direction: the names of w_ih, w_hh and, with biases, b_ih and b_hh."""
    layers: int
    directions: int
    batch_first: bool
    steps: int
    batch: int
    hidden: int
    input_shape: tuple[int, ...]

    @property
    def gates(self) -> int:
        """Rows of the weight matrices for each hidden unit."""
        return _GATES[self.cell]

    @property
    def has_biases(self) -> bool:
        """Whether the layers have biases."""
        return len(self.weights[0]) == 4

    @property
    def blocks(self) -> int:
        """Thread blocks for each layer and direction."""
        return self.hidden // UNITS

    @property
    def layers_at_once(self) -> int:
        """Layers that one launch computes. In a one-directional network, a layer can follow the layer below
        step by step. In a bidirectional one, a layer needs the complete sequence of the layer below, so it is
        1."""
        registers = 2 * self.gates * self.hidden // 64 * 4
        if self.directions > 1 or registers > _MAX_WEIGHT_REGISTERS:
            return 1
        return min(self.layers, _MAX_BLOCKS // self.blocks)


def find_network(graph: Graph) -> Network | None:
    """The recurrent operator of a graph; None if it has none. Raises NoProposal if no kernel suits it."""
    nodes = [node for node in graph.nodes if _cell(node) in _GATES]
    if not nodes:
        return None
    if len(nodes) > 1:
        raise NoProposal("the playbook supports one recurrent operator; the task has several")
    return _read(nodes[0], {node.name: node for node in graph.nodes})


def _cell(node: Node) -> str:
    return node.op.removeprefix("aten.").removesuffix(".input")


def _read(node: Node, nodes: dict[str, Node]) -> Network:
    arguments = dict(enumerate(node.args))
    if node.kwargs or len(arguments) < 9:
        raise NoProposal(f"the playbook does not support {node.op} with these arguments")
    source, states, weights = (_names(arguments[i]) for i in (0, 1, 2))
    has_biases, layers, dropout, train, bidirectional, batch_first = (arguments[i] for i in range(3, 9))
    directions, per_layer = 2 if bidirectional else 1, 4 if has_biases else 2
    x, state = nodes[source[0]], nodes[states[0]]
    if len(x.shape) != 3 or x.dtype != "float32" or len(weights) != layers * directions * per_layer:
        raise NoProposal("the playbook's recurrent kernels need batched float32 inputs and no projections")
    if dropout and train:
        raise NoProposal("the playbook does not support random dropout between recurrent layers")
    network = Network(
        _cell(node),
        node,
        source[0],
        tuple(states),
        tuple(tuple(weights[i : i + per_layer]) for i in range(0, len(weights), per_layer)),
        layers,
        directions,
        bool(batch_first),
        x.shape[1 if batch_first else 0],
        x.shape[0 if batch_first else 1],
        state.shape[-1],
        tuple(x.shape),
    )
    registers = network.gates * network.hidden // 64 * 4
    if network.hidden % _THREAD_STEP or registers > _MAX_WEIGHT_REGISTERS:
        raise NoProposal(f"the playbook has no recurrent kernel for {network.hidden} hidden units")
    if network.batch > _MAX_BATCH or network.blocks * directions > _MAX_BLOCKS:
        raise NoProposal(
            f"the playbook's recurrent kernels support up to {_MAX_BATCH} sequences per batch, "
            f"and {_MAX_BLOCKS * UNITS} hidden units in all directions together"
        )
    return network


def _names(argument: Any) -> list[str]:
    return [item["value"] for item in (argument if isinstance(argument, list) else [argument])]
