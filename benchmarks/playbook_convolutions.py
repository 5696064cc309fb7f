"""Times the playbook's C++ for KernelBench's convolutions against eager, at sizes that take 5 to 50 ms.

    python benchmarks/playbook_convolutions.py kernelbench:DIR --out FILE

For each problem: the first design of each form (authors/playbook/forms.py). All models run in turn; the ratio
to eager is the median over the rounds. Errors are relative to the mean magnitude of eager's result.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from playbook_device import import_source

from kernelpro.authors.author import Assignment
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.lab import tree
from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task
from kernelpro.suites.problems import find_problems

SIZES: dict[str, dict[str, int]] = {
    "1/50": {"batch_size": 8},
    "1/55": {"batch_size": 1, "height": 128, "width": 128},
    "1/57": {"batch_size": 1, "height": 128, "width": 128},
    "1/58": {"batch_size": 1, "depth_in": 8, "height_in": 16, "width_in": 32},
    "1/60": {"batch_size": 1, "width": 32, "height": 32, "depth": 16},
    "1/63": {"batch_size": 1, "width": 256, "height": 256},
    "1/67": {"batch_size": 2, "length": 16384},
    "1/72": {"batch_size": 2},
    "1/74": {"batch_size": 2, "length": 16384},
    "1/79": {"batch_size": 2, "length": 16384},
    "1/81": {"batch_size": 1},
    "1/82": {"batch_size": 2, "width": 256, "height": 256},
    "1/86": {"batch_size": 1, "width": 256, "height": 256},
    "1/87": {"batch_size": 1, "width": 256, "height": 256},
    "2/1": {"batch_size": 2},
    "2/2": {"batch_size": 2, "height": 64, "width": 64},
    "2/48": {"batch_size": 4, "height": 32, "width": 32},
}
"""By problem: the constants of its file that change."""
_SECONDS = 2.0


def with_sizes(source: str, sizes: dict[str, int]) -> str:
    """The problem's source with other constants."""
    module = ast.parse(source)
    for part in module.body:
        if isinstance(part, ast.Assign):
            known = [sizes[t.id] for t in part.targets if isinstance(t, ast.Name) and t.id in sizes]
            part.value = ast.Constant(known[0]) if known else part.value
    return ast.unparse(module)


def measure(task: Task) -> dict[str, Any]:
    """Times in ms, and for each form the ratio of eager's time to its time, and its error."""
    reference = Reference(task, "cpu", 0)
    graph = operator_graph(reference, 1)
    assignment = Assignment(0, "seed", task, "cpu", "fp32", 0.0, {}, graph=graph, languages=("cpp",))
    models: dict[str, Any] = {"eager": reference.model()}
    for draft in Playbook().seed_drafts(assignment):
        form = parse_design(draft.source).form
        if form not in models:
            models[form] = import_source(draft.source, "candidate").ModelNew(*reference.init_inputs)
            parameters.load_reference_state(models[form], reference.state())
    shape, leaves = reference.inputs(7)
    arguments = tree.unflatten(shape, leaves)
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.no_grad():
        results = {name: model(*arguments) for name, model in models.items()}
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            for name, model in models.items():
                begin = time.perf_counter()
                model(*arguments)
                times[name].append(time.perf_counter() - begin)
    truth = results["eager"]
    forms = list(models)[1:]
    rows = {name: [a / b for a, b in zip(times["eager"], times[name], strict=True)] for name in forms}
    return {
        "ms": {name: round(1000 * statistics.median(own), 2) for name, own in times.items()},
        "over_eager": {name: round(statistics.median(own), 2) for name, own in rows.items()},
        "quartiles": {name: [round(q, 2) for q in statistics.quantiles(own)] for name, own in rows.items()},
        "error": {name: float((results[name] - truth).abs().max() / truth.abs().mean()) for name in forms},
        "rounds": len(times["eager"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ids", default=",".join(SIZES))
    options = parser.parse_args()
    print("| problem | eager, ms | form: over eager [quartiles] |\n|---|---|---|")
    for problem in find_problems(options.suite, [], options.ids, "cpu"):
        name = problem.label.split()[0]
        row = measure(replace(problem.task, source=with_sizes(problem.task.source, SIZES[name])))
        with options.out.open("a") as file:
            file.write(
                json.dumps({"problem": problem.label, "sizes": SIZES[problem.label.split()[0]], **row}) + "\n"
            )
        ratios = (f"{form}: {ratio} {row['quartiles'][form]}" for form, ratio in row["over_eager"].items())
        print(f"| {name} | {row['ms']['eager']} | {', '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
