"""Studying a task before anybody writes for it: its operator graph, and its baselines as candidates.

The graph is traced in this process, as the reference itself is run here. What compilers write was seen where baselines were
compiled; where it was not, they run once more in a child like that one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.answers import CandidateRejected
from kernelpro.lab.seeds import MODES, NoSeed, as_it_is
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.records import BadInput

_NAMES = {"compile": "torch.compile", "max_autotune": "torch.compile max-autotune"}
"""Who wrote a seed; the eager ones are PyTorch's."""


def study(
    bench: Bench, variants: tuple[str, ...], report: Callable[[str], None], at_hand: Mapping[str, str]
) -> dict[str, Any]:
    """`graph` or `no_graph`, why not; `seeds` (variant, name, source), and `no_seeds`: why some are missing.

    `at_hand`: what was written when the baselines were compiled.
    """
    report("reading the operator graph")
    found: dict[str, Any] = {"graph": None, "no_graph": "", "seeds": [], "no_seeds": ""}
    try:
        found["graph"] = operator_graph(bench.reference, bench.new_seed()).to_json()
    except BadInput as error:
        found["no_graph"] = str(error)
    if variants:
        report("asking the compiler")
        found |= _seeds(bench, variants, at_hand)
    return found


def _seeds(bench: Bench, variants: tuple[str, ...], at_hand: Mapping[str, str]) -> dict[str, Any]:
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
    seeds = [
        {"variant": name, "name": _name(name), "source": sources[name]}
        for name in variants
        if sources.get(name)
    ]
    return {"seeds": seeds, "no_seeds": "; ".join(f"{name}: {reason}" for name, reason in missing.items())}


def _asked(bench: Bench, variants: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of a child with the reference: what compilers write, and by their names why they do not."""
    seconds = bench.options.build_timeout
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}
    child = bench.admit_reference(variants, sets=0)
    try:
        buffer = io.BytesIO()
        torch.save({"task": bench.task}, buffer)
        child.ask(bench.start_request(), seconds)
        child.ask({"op": "load", "seed": bench.seed}, seconds, buffer.getvalue())
        for variant in variants:
            answer = child.ask({"op": "seed", "variant": variant}, seconds)
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
