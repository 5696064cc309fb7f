"""Studying a task before anybody writes for it: its operator graph, and its baselines as candidates.

The graph is traced in this process, as the reference itself is run here. What compilers write was seen where baselines were
compiled; where it was not, they run once more in a child like that one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import torch

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.seeds import MODES, NoSeed, as_it_is
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.records import BadInput, BaselineSeed, StudyData

_NAMES = {"compile": "torch.compile", "max_autotune": "torch.compile max-autotune"}
"""Who wrote a seed; the eager ones are PyTorch's."""


def study(
    bench: Bench, variants: tuple[str, ...], report: Callable[[str], None], at_hand: Mapping[str, str]
) -> StudyData:
    """The operator graph and the baselines as candidates, or why either is missing.

    `at_hand`: sources that were captured when the baselines were compiled.
    """
    report("reading the operator graph")
    graph, graph_error = None, ""
    try:
        graph = operator_graph(bench.reference, bench.new_seed())
    except BadInput as error:
        graph_error = str(error)
    if not variants:
        return StudyData(graph, graph_error)
    report("asking the compiler")
    return StudyData(graph, graph_error, *_seeds(bench, variants, at_hand))


def _seeds(
    bench: Bench, variants: tuple[str, ...], at_hand: Mapping[str, str]
) -> tuple[tuple[BaselineSeed, ...], str]:
    sources, missing = (
        {variant: at_hand[variant] for variant in variants if variant in at_hand},
        dict[str, str](),
    )
    for variant in (name for name in variants if name not in MODES):
        try:
            sources[variant] = as_it_is(bench.reference)
        except NoSeed as reason:
            missing[_name(variant)] = str(reason)
    if wanted := [name for name in variants if name in MODES and not sources.get(name)]:
        written, refused = _asked(bench, wanted)
        sources, missing = sources | written, missing | refused
    seeds = tuple(BaselineSeed(name, _name(name), sources[name]) for name in variants if sources.get(name))
    return seeds, "; ".join(f"{name}: {reason}" for name, reason in missing.items())


def _asked(bench: Bench, variants: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of a child with the reference: what compilers write, and by their names why they do not."""
    seconds = bench.options.build_timeout
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}
    child = bench.start_reference(variants, buffer_sets=0)
    try:
        buffer = io.BytesIO()
        torch.save({"task": bench.task}, buffer)
        child.request(bench.start_request(), seconds)
        child.request({"op": "load", "seed": bench.seed}, seconds, buffer.getvalue())
        for variant in variants:
            answer = child.request({"op": "compiled_source", "variant": variant}, seconds)
            if answer["source"]:
                sources[variant] = answer["source"]
            else:
                missing[_name(variant)] = answer["reason"]
    except CandidateRejected as error:
        missing["compilers"] = error.reason
    finally:
        child.close()
    return sources, missing


def _name(variant: str) -> str:
    return _NAMES.get(variant, "PyTorch")
