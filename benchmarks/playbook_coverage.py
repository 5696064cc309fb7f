"""What the playbook reads and writes of a suite, without a GPU: a table and one JSON row per problem.

    python benchmarks/playbook_coverage.py kernelbench:DIR --out OUT.json [--graphs CACHE] [--ids 1/1-20]

Each problem's operator graph is traced at its real shapes; weights and inputs are never filled, so that
gigabytes of them cost nothing. The playbook then simplifies the graph, fuses it and writes its first designs
in every language. A row holds the stages by family, the algebra that applied, the drafts by language, the
designs that would race, and the reason where there is none. `--graphs` keeps the traced graphs, so that the
next survey takes seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelpro.authors.author import Assignment, NoProposal
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.recurrent.network import find_network
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.authors.playbook.schedule.passes import is_elementwise, scans_of
from kernelpro.authors.playbook.triton.elementwise import find_transpose
from kernelpro.authors.playbook.triton.moves import rows_are_contiguous
from kernelpro.engine.design_race import first_designs
from kernelpro.lab import tree
from kernelpro.lab.tasks import reference
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.records import BadInput, Graph, Target
from kernelpro.suites.problems import Problem, find_problems

Row = dict[str, Any]
_INITIALIZERS = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]


class UnfilledReference:
    """A task's model and inputs with their real shapes, but without values: memory that is never touched."""

    def __init__(self, problem: Problem):
        self.task = problem.task
        module = reference.load_source(self.task)
        with torch.no_grad(), _without_initialization():
            self._model: nn.Module = getattr(module, self.task.entry)(
                *getattr(module, "get_init_inputs", list)()
            )
        self._model.train(self.task.mode == "train").requires_grad_(False)
        leaves: list[torch.Tensor] = []
        with torch.device("meta"):
            self._form = tree.flatten(list(module.get_inputs()), leaves)
        self._leaves = [_unfilled(leaf) for leaf in leaves]

    def inputs(self, seed: int) -> tuple[tree.TreeSpec, list[torch.Tensor]]:
        """The spec and the tensors of the inputs."""
        return self._form, self._leaves

    def model(self) -> nn.Module:
        """The model."""
        return self._model

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        return dict(self._model.state_dict())


def _unfilled(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.device.type != "meta":
        return leaf
    return (
        torch.empty_like(leaf, device="cpu")
        if leaf.is_floating_point()
        else torch.zeros_like(leaf, device="cpu")
    )


@contextlib.contextmanager
def _without_initialization() -> Iterator[None]:
    """Parameters keep the memory's old content: filling them takes most of the time of building a model."""
    saved = {name: getattr(nn.init, name) for name in _INITIALIZERS}
    for name in _INITIALIZERS:
        setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(nn.init, name, function)


def read_graph(problem: Problem, cache: Path | None) -> Graph:
    """The operator graph, from the cache if it is there. Raises BadInput if it cannot be traced."""
    file = cache / f"{problem.task.id}.json" if cache else None
    if file and file.exists():
        data = json.loads(file.read_text())
        if "error" in data:
            raise BadInput(data["error"])
        return Graph.from_json(data)
    try:
        graph = operator_graph(UnfilledReference(problem), 0)  # type: ignore[arg-type]
    except Exception as error:  # a problem's code may raise anything
        if file:
            file.write_text(json.dumps({"error": str(error)}))
        raise BadInput(str(error)) from None
    finally:
        reference.unload(problem.task)
    if file:
        file.write_text(json.dumps(graph.to_json()))
    return graph


def family(stage: Stage) -> str:
    """What kind of loop nest a stage is."""
    if stage.product:
        return "product"
    if find_contraction(stage):
        return "convolution as product"
    if is_elementwise(stage):
        return "transpose" if find_transpose(stage) else "element-wise"
    if any(step.guards for step in stage.reductions):
        return "window with padding"
    if scans_of(step.value for step in stage.steps):
        return "scan"
    if not stage.reductions:
        return "totals"
    return "reduction across rows" if rows_are_contiguous(stage) else "reduction along rows"


def design_name(source: str) -> str:
    """Form, language and whether it is a CUDA graph."""
    if "# playbook:" not in source:
        return "recurrent cuda"
    design = parse_design(source)
    return f"{design.form} {design.language}{' graph' if design.graph else ''}"


def survey(problem: Problem, target: Target, cache: Path | None) -> Row:
    """The row of one problem."""
    row: Row = {"problem": problem.label, "level": problem.level}
    try:
        graph = read_graph(problem, cache)
    except BadInput as error:
        return row | {"reason": f"no graph: {error}"}
    row["operators"] = sum(node.op not in ("input", "parameter") for node in graph.nodes)
    assignment = Assignment(0, "seed", problem.task, target, "tf32", 0.0, {}, graph=graph)
    try:
        drafts = Playbook().seed_drafts(assignment)
        raced = first_designs(Playbook().trusted_designs(assignment))
        programs = {} if find_network(graph) else programs_of(graph, target)
    except NoProposal as reason:
        return row | {"reason": str(reason)}
    except Exception:  # a defect of the playbook: the survey reports it
        return row | {"reason": f"crash: {traceback.format_exc()[-400:]}"}
    row["raced"] = [design_name(draft.source) for draft in raced]
    if not programs:
        return row | {"programs": {"recurrent": {"persistent kernel": 1}}, "drafts": {"cuda": len(drafts)}}
    row["programs"] = {name: _describe(program) for name, program in programs.items()}
    row["algebra"] = [step.rule for step in next(iter(programs.values())).rewrites]
    row["library"] = sorted({call.op for program in programs.values() for call in program.library_calls})
    row["drafts"] = Counter(parse_design(draft.source).language for draft in drafts)
    return row


def _describe(program: Program) -> dict[str, int]:
    return dict(Counter(family(stage) for stage in program.stages))


def table(rows: list[Row]) -> str:
    """The survey as text: totals by level, then what is missing, the most frequent reason first."""
    lines = [
        "| level | problems | traced | written | with algebra | with library calls |",
        "|---|---|---|---|---|---|",
    ]
    for level in sorted({row["level"] for row in rows}):
        own = [row for row in rows if row["level"] == level]
        counts = [
            len(own),
            sum("operators" in row for row in own),
            sum("drafts" in row for row in own),
            sum(bool(row.get("algebra")) for row in own),
            sum(bool(row.get("library")) for row in own),
        ]
        lines.append(f"| {level} | {' | '.join(map(str, counts))} |")
    families: Counter[str] = Counter()
    for row in rows:
        if "programs" in row:
            families.update(next(iter(row["programs"].values())).keys())
    raced = Counter(name for row in rows for name in set(row.get("raced", ())))
    rules = Counter(rule for row in rows for rule in set(row.get("algebra", ())))
    for title, counter in (
        ("family of stages", families),
        ("raced design", raced),
        ("algebra", rules),
    ):
        lines += ["", f"| {title} | problems |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in counter.most_common()]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if "reason" in row:
            reasons.setdefault(row["reason"].replace("\n", " ")[:160], []).append(row["problem"].split()[0])
    lines += ["", "| not written because | problems |", "|---|---|"]
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    lines += [f"| {reason} | {', '.join(names)} |" for reason, names in ordered]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--ids", default="")
    parser.add_argument("--level", type=int, action="append", default=[])
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--mode", choices=["train", "eval"], default="train")
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.graphs:
        options.graphs.mkdir(parents=True, exist_ok=True)
    rows = []
    for problem in find_problems(options.suite, options.level, options.ids, options.target, options.mode):
        start = time.monotonic()
        row = survey(problem, options.target, options.graphs)
        rows.append(row | {"seconds": round(time.monotonic() - start, 2)})
        print(f"{row['problem']}: {row.get('reason') or row['programs']}"[:200], flush=True)
    if options.out:
        options.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(table(rows))


if __name__ == "__main__":
    main()
