"""Every first design of the playbook at small, awkward sizes, compared with the oracle, without a GPU.

    python benchmarks/playbook_small.py kernelbench:DIR --language triton --out FILE.jsonl [--ids 1/1-20]

1. Shrinks a problem: the constants of its module become small sizes that are no multiples of tiles. Kernel
   sizes, strides, groups, heads and the like stay. Of several attempts, the first that the reference accepts
   counts; later ones have sizes that more numbers divide.
2. Lets the playbook write all first designs, and `--moves` more: one to three random moves from a first
   design, at a random point of its tunables.
3. Runs them, C++ as it is and Triton in its interpreter (libdevice is replaced, as in the tests), and
   compares the results with the oracle by the judge's tolerance for float32, on inputs as given and on inputs
   with constant rows and offsets.

Each problem has a process of its own, so that a crash is a row of the table. CUDA graphs are left out: they
launch the same kernels.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
from playbook_device import OutOfTime, import_source, time_limit

from kernelpro.authors.author import Assignment, NoProposal, source_fingerprint
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.playbook import BACKENDS, Playbook
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.authors.playbook.triton.functions import LIBDEVICE
from kernelpro.lab import tree
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.inputs import AS_GIVEN, ODD_ROWS
from kernelpro.lab.tasks.reference import Reference
from kernelpro.lab.tuning import tunables
from kernelpro.records import Target, Task
from kernelpro.suites.problems import Problem, find_problems

Row = dict[str, Any]
Node = TypeVar("Node", bound=ast.AST)
_LIBDEVICE_ON_CPU = Path(__file__).resolve().parent.parent / "tests" / "authors" / "libdevice_on_cpu.py"
_PAIRS = 25
_KEPT = re.compile(
    r"kernel|stride|pad|dilation|group|head|scale|drop|eps|alpha|beta|gamma|momentum|slope|min|max_val|margin"
    r"|layers|expan|reduction|pool|factor|shift|window|ratio|depths|blocks"
)
_BATCH, _CHANNELS = re.compile(r"batch"), re.compile(r"channel|feature|embd|embed|hidden|put_size|classes")
_LARGEST_KEPT = 8
"""Numbers up to this size are small already."""
_MULTIPLES = (2, 4, 8, 16, 48, 64, 0)
"""What divides the channels; 0: unchanged."""
_FIRST_SIZES = (11, 19, 35, 67, 131, 0)
"""The first of the other sizes; 0: unchanged. Problems without windows begin with 67: more than a tile."""
_MAX_ELEMENTS = 1 << 16
"""Of the inputs, if such sizes work: the interpreter takes seconds for a million."""


class _Shrink(ast.NodeTransformer):
    """Replaces numbers in the constants of a problem and in its `get_inputs`."""

    def __init__(self, multiple: int, first: int, batch: int | None):
        self._multiple, self._first, self._batch = multiple, first, batch
        self._sizes: dict[str, dict[int, int]] = {"channels": {}, "others": {}}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name == "get_inputs":
            for statement in node.body:
                self._shrunken(statement, "")
        return node

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        for part in node.body:
            if isinstance(part, ast.Assign):
                names = [name.id for name in ast.walk(part.targets[0]) if isinstance(name, ast.Name)]
                if isinstance(part.value, ast.Tuple) and len(names) == len(part.value.elts):
                    pairs = zip(part.value.elts, names, strict=True)
                    part.value.elts = [self._shrunken(value, name) for value, name in pairs]
                else:
                    part.value = self._shrunken(part.value, " ".join(names))
        return node

    def _shrunken(self, value: Node, name: str) -> Node:
        name = name.lower()
        if _KEPT.search(name):
            return value
        for constant in ast.walk(value):
            if isinstance(constant, ast.Constant) and type(constant.value) is int:
                constant.value = self._size(constant.value, name)
        return value

    def _size(self, size: int, name: str) -> int:
        if _BATCH.search(name) and self._batch:
            return min(size, self._batch)
        if size <= _LARGEST_KEPT:
            return size
        kind = "channels" if _CHANNELS.search(name) else "others"
        step = self._multiple if kind == "channels" else 2
        first = -(-17 // step) * step if step and kind == "channels" else self._first
        if not step or not first:
            return size
        known = self._sizes[kind]
        return known.setdefault(size, min(size, first + step * len(known)))


def small_task(problem: Problem, first_size: int = 0) -> Task:
    """The problem with the first sizes that its reference accepts, beginning with `first_size` if given."""
    first_sizes = _FIRST_SIZES if "kernel_size" in problem.task.source else (67, 35, *_FIRST_SIZES)
    limits = (math.inf,) if first_size else (_MAX_ELEMENTS, math.inf)
    first_sizes = (first_size, *first_sizes) if first_size else first_sizes
    attempts = itertools.product(limits, (3, None), first_sizes, _MULTIPLES)
    for most, batch, first, multiple in attempts:
        module = _Shrink(multiple, first, batch).visit(ast.parse(problem.task.source))
        task = replace(problem.task, source=ast.unparse(module))
        try:
            reference = Reference(task, "cpu", 0)
            form, leaves = reference.inputs(1)
            if sum(leaf.numel() for leaf in leaves) > most:
                continue
            with torch.no_grad():
                reference.model()(*tree.unflatten(form, leaves))
        except Exception:  # sizes that do not fit together raise anything
            continue
        return task
    raise RuntimeError("no smaller sizes work")


class Trial:
    """One problem in one language."""

    def __init__(self, problem: Problem, options: argparse.Namespace):
        self.language, self._options = options.language, options
        self.target = next(b.target for b in BACKENDS if b.language == self.language)
        self.backend = next(b for b in BACKENDS if b.language == self.language)
        self.task = small_task(problem, options.first_size)
        self._reference = Reference(self.task, "cpu", 0)
        self._graph = operator_graph(self._reference, 1)
        self._rng = random.Random(problem.label)

    @property
    def sizes(self) -> list[list[int]]:
        """The shapes of the inputs."""
        return [list(leaf.shape) for leaf in self._reference.inputs(1)[1]]

    def sources(self) -> dict[str, str]:
        """The designs by name. Raises NoProposal if there is none."""
        languages = (self.language,)
        assignment = Assignment(
            0, "seed", self.task, self.target, "tf32", 0.0, {}, graph=self._graph, languages=languages
        )
        drafts = Playbook().seed_drafts(assignment)
        first = [(parse_design(d.source), d.source) for d in drafts if "# playbook:" in d.source]
        first = [(design, source) for design, source in first if not design.graph]
        if not first:
            raise NoProposal("its only design is a template in CUDA")
        found = {source_fingerprint(s): (f"{d.form} {n}", s) for n, (d, s) in enumerate(first)}
        programs = programs_of(self._graph, self.target)
        for number in range(self._options.moves):
            design, names = self._random_design(self._rng.choice(first)[0], programs)
            try:
                source = self._at_random_point(self.backend.write(programs[design.form], design))
            except NoProposal:
                continue
            found.setdefault(source_fingerprint(source), (f"{design.form} move {number}: {names}", source))
        return dict(found.values())

    def _random_design(self, design: Design, programs: dict[str, Any]) -> tuple[Design, str]:
        names = []
        for move in self._rng.sample(self.backend.moves, self._rng.randint(1, 3)):
            if changed := move.apply(programs[design.form], design):
                design = changed
                names.append(move.name)
        return design, ", ".join(names) or "tunables"

    def _at_random_point(self, source: str) -> str:
        space = tunables.parse(source)
        points = (space.sample(self._rng) for _ in range(20))
        point = next((p for p in points if space.allows(p)), space.default)
        return tunables.apply_point(source, point)

    def run(self) -> Iterator[Row]:
        oracle = Oracle(self._reference, 1 << 28)
        tolerance = Tolerance(oracle, "fp32", 7, (AS_GIVEN, ODD_ROWS))
        for name, source in self.sources().items():
            yield {"design": name, "status": "started"}
            begin = time.monotonic()
            row: Row = {"design": name}
            try:
                with time_limit(self._options.seconds):
                    row["excess"] = self._excesses(source, oracle, tolerance)
                    row["status"] = "right" if max(row["excess"].values()) <= 1 else "wrong"
                    if self._options.time:
                        row["over_eager"] = self._speed_up(source)
            except Exception as error:  # a design may fail in any way, and the table shows how
                row["error"] = f"{type(error).__name__}: {error}"[-400:]
                row["status"] = "slow" if OutOfTime.__name__ in row["error"] else "crashed"
            if row["status"] in ("wrong", "crashed") and self._options.keep:
                path = self._options.keep / f"{self.task.id}_{re.sub(r'[^a-z0-9]+', '_', name)}.py"
                path.write_text(source)
            yield row | {"seconds": round(time.monotonic() - begin, 2)}

    def _speed_up(self, source: str) -> float:
        """The median over pairs of neighbouring calls: eager's time divided by the design's."""
        candidate = import_source(source, "candidate").ModelNew(*self._reference.init_inputs)
        parameters.load_reference_state(candidate, self._reference.state())
        models, (form, leaves) = (self._reference.model(), candidate), self._reference.inputs(7)
        arguments, ratios = tree.unflatten(form, leaves), []
        for _ in range(_PAIRS):
            times = []
            for model in models:
                begin = time.perf_counter()
                with torch.no_grad():
                    model(*arguments)
                times.append(time.perf_counter() - begin)
            ratios.append(times[0] / times[1])
        return round(statistics.median(ratios), 3)

    def _excesses(self, source: str, oracle: Oracle, tolerance: Tolerance) -> dict[str, float]:
        """The error by distribution, as a multiple of the tolerance."""
        source = source.replace(LIBDEVICE, "import libdevice_on_cpu as libdevice\n")
        module, excesses = import_source(source, "candidate"), {}
        for distribution, limit in tolerance.limits.items():
            model = module.ModelNew(*self._reference.init_inputs)
            parameters.load_reference_state(model, self._reference.state())
            form, leaves = oracle.inputs(7, distribution)
            with torch.no_grad():
                result = model(*tree.unflatten(form, [leaf.clone() for leaf in leaves]))
            outputs: list[torch.Tensor] = []
            tree.flatten(result, outputs)
            truth = oracle.truth(7, distribution)
            if [o.shape for o in outputs] != [t.shape for t in truth]:
                raise ValueError(f"shapes {[tuple(o.shape) for o in outputs]}")
            excesses[distribution] = limit.share_used(measure_errors(outputs, truth))
        return excesses


def _work(problem: Problem, options: argparse.Namespace, rows: Connection) -> None:
    """Sends a row for each design, then one that ends the problem."""
    warnings.simplefilter("ignore")  # masked elements overflow or divide by zero in the interpreter
    torch.set_num_threads(1)
    end: Row = {"design": "", "status": "done"}
    try:
        trial = Trial(problem, options)
        end["sizes"] = trial.sizes
        for row in trial.run():
            rows.send(row)
    except NoProposal as reason:
        end["reason"] = str(reason)
    except Exception as error:  # the other problems can still be tried
        end["reason"] = f"failed: {type(error).__name__}: {error}"[:300]
    rows.send(end)


def survey(problem: Problem, options: argparse.Namespace) -> list[Row]:
    """The rows of one problem, from a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(problem, options, sender))
    process.start()
    sender.close()
    rows: list[Row] = []
    deadline = time.monotonic() + 4 * options.seconds
    try:
        while not rows or rows[-1]["status"] != "done":
            if not receiver.poll(max(deadline - time.monotonic(), 0)):
                rows.append({"design": "", "status": "done", "reason": "out of time"})
                break
            rows.append(receiver.recv())
    except EOFError:
        name = rows[-1]["design"] if rows else ""
        rows.append({"design": name, "status": "crashed", "error": f"the process ended: {process.exitcode}"})
        rows.append({"design": "", "status": "done", "reason": "it ended its process"})
    process.kill()
    process.join()
    known = {"problem": problem.label, "level": problem.level, "language": options.language}
    return [known | row for row in rows if row["status"] != "started"]


def table(rows: list[Row]) -> str:
    """Totals by level and language, then every design that is not right, and what was not written."""
    statuses = ("right", "wrong", "crashed", "slow")
    columns = ("language", "level", "problems", "written", "all right", "designs", *statuses)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for language, level in sorted({(row["language"], row["level"]) for row in rows}):
        own = [row for row in rows if (row["language"], row["level"]) == (language, level)]
        designs = [row for row in own if row["status"] != "done"]
        counts = Counter(row["status"] for row in designs)
        problems, written = ({row["problem"] for row in part} for part in (own, designs))
        faulty = {row["problem"] for row in designs if row["status"] != "right"}
        numbers = [len(problems), len(written), len(written - faulty), len(designs)]
        numbers += [counts[status] for status in statuses]
        lines.append(f"| {language} | {level} | {' | '.join(map(str, numbers))} |")
    for row in rows:
        name = f"{row['language']} {row['problem']}"
        if row["status"] in ("wrong", "crashed"):
            what = row.get("error") or row["excess"]
            lines.append(f"{name}: {row['design']}: {row['status']}: {what}"[:300])
        if row.get("reason"):
            lines.append(f"{name}: {row['reason']}"[:200])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--language", choices=["cpp", "triton"], required=True)
    parser.add_argument("--out", type=Path, required=True, help="rows are added; its problems are skipped")
    parser.add_argument("--ids", default="")
    parser.add_argument("--level", type=int, action="append", default=[])
    parser.add_argument("--moves", type=int, default=3, help="random designs of each problem")
    parser.add_argument(
        "--seconds", type=int, default=40, help="for a design; a problem has four times as many"
    )
    parser.add_argument("--first-size", type=int, default=0, help="larger ones, to time them")
    parser.add_argument("--time", action="store_true", help="also the ratio to eager, on one core")
    parser.add_argument("--keep", type=Path, help="a folder for the sources of designs that are not right")
    options = parser.parse_args()
    if options.language == "triton":
        assert "triton" not in sys.modules, "the interpreter must be chosen before Triton is imported"
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append(str(_LIBDEVICE_ON_CPU.parent))
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["problem"], row["language"]) for row in rows if row["status"] == "done"}
    target: Target = "cpu" if options.language == "cpp" else "cuda"
    for problem in find_problems(options.suite, options.level, options.ids, target):
        if (problem.label, options.language) in done:
            continue
        own = survey(problem, options)
        rows += own
        with options.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in own)
        counts = Counter(row["status"] for row in own if row["status"] != "done")
        print(f"{problem.label}: {dict(counts)} {own[-1].get('reason', '')}"[:200], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
