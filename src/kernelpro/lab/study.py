"""Studying a task before anybody writes for it: its operator graph, and its baselines as candidates.

The graph is traced in this process, as the reference itself is run here. Compilers run in a child like that of the
baselines, with the same cache: where the task was probed before, their work is done.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch

from kernelpro.lab.judge.answers import Verdictable
from kernelpro.lab.judge.bench import Bench
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.records import BadInput

_NAMES = {"compile": "torch.compile", "max_autotune": "torch.compile max-autotune"}
"""Who wrote a seed; the eager ones are PyTorch's."""


def study(bench: Bench, variants: tuple[str, ...], report: Callable[[str], None]) -> dict[str, Any]:
    """`graph` or `no_graph`, why not; `seeds` (variant, name, source), and `no_seeds`: why some are missing."""
    report("reading the operator graph")
    found: dict[str, Any] = {"graph": None, "no_graph": "", "seeds": [], "no_seeds": ""}
    try:
        found["graph"] = operator_graph(bench.reference, bench.new_seed()).to_json()
    except BadInput as error:
        found["no_graph"] = str(error)
    if variants:
        report("asking the compiler")
        found |= _seeds(bench, variants)
    return found


def _seeds(bench: Bench, variants: tuple[str, ...]) -> dict[str, Any]:
    seconds = bench.options.build_timeout
    seeds: list[dict[str, str]] = []
    missing = {}
    child = bench.admit_reference(variants, sets=0)
    try:
        buffer = io.BytesIO()
        torch.save({"task": bench.task}, buffer)
        child.ask(bench.start_request(), seconds)
        child.ask({"op": "load", "seed": bench.seed}, seconds, buffer.getvalue())
        for variant in variants:
            name = _NAMES.get(variant, "PyTorch")
            answer = child.ask({"op": "seed", "variant": variant}, seconds)
            if answer["source"]:
                seeds.append({"variant": variant, "name": name, "source": answer["source"]})
            else:
                missing[name] = answer["reason"]
    except Verdictable as error:
        missing["compilers"] = error.reason
    finally:
        child.close()
    reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
    return {"seeds": seeds, "no_seeds": reasons}
