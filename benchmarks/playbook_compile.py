"""Compile the playbook's designs of a suite for a GPU that this machine does not have.

    python benchmarks/playbook_compile.py kernelbench:DIR --out OUT.jsonl [--graphs CACHE] [--ids 1/1-20] \
        [--language triton]

The designs are those that race, at the real sizes of each problem, and are built as the worker builds them:
in a sandbox, on tensors without data. A row holds, for each design, the kernels with registers, stack, shared
memory and matrix instructions, or why it has none. A design that does not compile, spills, or needs more
shared memory than the device has would lose its place in the race. Needs nvcc for CUDA and Triton for Triton,
best in the versions of the GPU's host. Problems that OUT.jsonl already holds are not compiled again.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tarfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from playbook_coverage import design_name, read_graph

from kernelpro.authors.author import Assignment, NoProposal
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.design_race import first_designs
from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.profile import sass
from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput, Candidate, Hardware, Options
from kernelpro.suites.problems import Problem, find_problems

Row = dict[str, Any]
HOPPER: triton_ahead.DeviceProperties = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "warp_size": 32,
    "L2_cache_size": 62914560,
    "total_memory": 150109880320,
}
_MATRIX = ("hgmma", "hmma")
_LAUNCH = re.compile(r"^ +(\w+)\[\(.*num_warps=", re.M)
"""The launch of a Triton kernel."""


def designs_of(problem: Problem, graphs: Path | None) -> list[str]:
    """The sources of the designs that race. Raises BadInput or NoProposal."""
    graph = read_graph(problem, graphs)
    hardware = Hardware(facts={"capability": f"{HOPPER['major']}.{HOPPER['minor']}"})
    assignment = Assignment(1, "seed", problem.task, "cuda", "tf32", 0.0, {}, graph=graph, hardware=hardware)
    return [draft.source for draft in first_designs(Playbook().trusted_designs(assignment))]


def compile_design(builds: Builds, problem: Problem, source: str) -> Row:
    """Build one design and read its machine code."""
    candidate, begun = Candidate(source), time.monotonic()
    row: Row = {"design": design_name(source), "id": candidate.id}
    try:
        packed = builds.get(candidate, "cuda", Options(), problem.task)
    except CandidateRejected as error:
        return row | {"failed": error.reason}
    row["build_seconds"] = round(time.monotonic() - begun, 2)
    files = {}
    if packed:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    files[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    kernels = {
        name: [
            {
                "registers": code.registers,
                "stack": code.stack,
                "shared": (code.shared or 0) + (code.dynamic_shared or 0),
                "threads": code.threads,
                "widths": code.widths,
                "matrix": {kind: code.mix[kind] for kind in _MATRIX if code.mix.get(kind)},
            }
            for code in variants
        ]
        for name, variants in sass.analyze(files, source).kernels.items()
    }
    row["kernels"] = kernels
    if missing := sorted(set(_LAUNCH.findall(source)) - set(kernels)):
        row["missing"] = missing
    if note := builds.notes.get(candidate.id):
        row["note"] = note
    return row


def write_designs(problem: Problem, graphs: Path | None, languages: list[str]) -> list[str] | str:
    """The sources of a problem's designs in these languages, or why there are none."""
    try:
        sources = designs_of(problem, graphs)
    except (BadInput, NoProposal) as reason:
        return str(reason)
    except Exception:  # a defect of the playbook: the row reports it
        return f"crash: {traceback.format_exc()[-400:]}"
    return [source for source in sources if design_name(source).split()[1] in languages]


def complaint(design: Row) -> str:
    """What is wrong with a compiled design; empty if nothing is."""
    if "failed" in design:
        return f"failed: {design['failed'][:300]}"
    if design.get("missing"):
        return f"not compiled: {', '.join(design['missing'])}"
    codes = [code for variants in design["kernels"].values() for code in variants]
    if not codes:
        return "no kernels"
    if stack := max(code["stack"] or 0 for code in codes):
        return f"spills: {stack} bytes of stack"
    if (shared := max(code["shared"] for code in codes)) > HOPPER["shared_memory_per_block_optin"]:  # type: ignore[operator]
        return f"shared memory: {shared} bytes"
    return ""


def table(rows: list[Row]) -> str:
    """Designs by level and language, and what is wrong with them."""
    kinds = ("failed", "not compiled", "no kernels", "spills", "shared memory")
    lines = [
        f"| level | language | designs | {' | '.join(kinds)} | with wgmma | with mma.sync |",
        "|---" * (len(kinds) + 5) + "|",
    ]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for design in row.get("designs", ()):
            key = row["problem"].partition("/")[0], design["design"].split()[1]
            groups.setdefault(key, []).append(design)
    for (level, language), designs in sorted(groups.items()):
        wrong = Counter(complaint(design).partition(":")[0] for design in designs)
        used = [
            {
                kind
                for codes in design.get("kernels", {}).values()
                for code in codes
                for kind in code["matrix"]
            }
            for design in designs
        ]
        matrix = [sum(kind in kinds for kinds in used) for kind in _MATRIX]
        cells = [level, language, len(designs), *(wrong[kind] for kind in kinds), *matrix]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--ids", default="")
    parser.add_argument("--level", type=int, action="append", default=[])
    parser.add_argument("--language", action="append", choices=["triton", "cuda"], default=[])
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.graphs:
        options.graphs.mkdir(parents=True, exist_ok=True)
    out: Path = options.out
    done = {json.loads(line)["problem"] for line in out.read_text().splitlines()} if out.exists() else set()
    problems = find_problems(options.suite, options.level, options.ids, "cuda", "train")
    languages = options.language or ["triton", "cuda"]
    written = {}
    for problem in problems:
        if problem.label not in done:
            print(f"writing {problem.label}", flush=True)
            written[problem.label] = write_designs(problem, options.graphs, languages)
    triton_ahead.pretend_device(HOPPER)  # graphs are traced without it
    launcher = SandboxLauncher()
    builds = Builds(launcher, options.processes)
    with ThreadPoolExecutor(options.processes) as threads, out.open("a") as rows:
        for problem in problems:
            if problem.label in done:
                continue
            begun, sources = time.monotonic(), written[problem.label]
            row: Row = {"problem": problem.label}
            if isinstance(sources, str):
                row["reason"] = sources
            else:
                compiled = threads.map(partial(compile_design, builds, problem), sources)
                row["designs"] = list(compiled)
            row["seconds"] = round(time.monotonic() - begun, 1)
            rows.write(json.dumps(row) + "\n")
            rows.flush()
            found = [f"{d['design']}: {complaint(d)}" for d in row.get("designs", []) if complaint(d)]
            what = row.get("reason") or f"{len(row['designs'])} designs in {row['seconds']} s"
            print(f"{row['problem']}: {what} {found or ''}", flush=True)
    builds.close()
    launcher.close()
    print(table([json.loads(line) for line in out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
