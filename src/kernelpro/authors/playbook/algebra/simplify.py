"""Applies the rules, one at a time, until none applies any more."""

from __future__ import annotations

from collections.abc import Callable

from kernelpro.authors.playbook.algebra.constants import (
    fold_constants,
    merge_numbers,
    reduce_one_element,
    simplify_clamps,
)
from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, Rewrite
from kernelpro.authors.playbook.algebra.pooling import average_inside_convolution, merge_poolings
from kernelpro.authors.playbook.algebra.products import (
    drop_shift_before_norm,
    multiply_by_diagonal,
    pool_weights,
    unflip_convolution,
)
from kernelpro.authors.playbook.algebra.reduction_first import move_before_product
from kernelpro.authors.playbook.algebra.weight_folding import fold_into_convolution
from kernelpro.records import Graph, Node

Rule = Callable[[GraphEditor, Node], Rewrite | None]
"""Changes the graph at a node if it applies there; returns the rewrite, or None."""

RULES: tuple[Rule, ...] = (
    reduce_one_element,
    fold_constants,
    simplify_clamps,
    multiply_by_diagonal,
    pool_weights,
    move_before_product,
    merge_poolings,
    average_inside_convolution,
    unflip_convolution,
    drop_shift_before_norm,
    fold_into_convolution,
    merge_numbers,
)
_MAX_STEPS = 200
_MAX_OPERATORS = 400
"""Larger graphs are not simplified: finding the users of each node takes quadratic time."""


def simplify(graph: Graph) -> tuple[Graph, tuple[Rewrite, ...]]:
    """A graph that computes the same with less work, and the rewrites that led there; the graph itself if no
    rule applies."""
    if len(graph.nodes) > _MAX_OPERATORS:
        return graph, ()
    editor, steps = GraphEditor(graph), list[Rewrite]()
    while len(steps) < _MAX_STEPS and (step := _next_step(editor)):
        steps.append(step)
    return (editor.graph(), tuple(steps)) if steps else (graph, ())


def _next_step(editor: GraphEditor) -> Rewrite | None:
    for node in editor.operators:
        for rule in RULES:
            if step := rule(editor, node):
                return step
    return None
