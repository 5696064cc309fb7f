"""Checks Triton candidates without a GPU: `python triton_trials.py interpret NAME...`, or `compile FOLDER NAME... -- NAME...`.

interpret    runs small tasks in Triton's interpreter and compares them with the reference. TRITON_INTERPRET must be
             set before Triton is imported and affects the whole process, hence a process of its own.
compile      compiles the same tasks for Hopper (the interpreter accepts code that the compiler rejects), then
             larger ones (those after --), which it disassembles if a disassembler is installed.

Prints one JSON line per candidate. libdevice_on_cpu.py replaces libdevice, which the interpreter lacks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from playbook_harness import MATH_TASKS, make_task, math_task, operator_graph_of, program_of
from test_playbook_families import FAMILIES

from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.authors.playbook.triton.functions import LIBDEVICE
from kernelpro.lab.tasks.reference import Reference
from kernelpro.lab.tuning.tunables import parse
from kernelpro.records import Task

CHUNKS = {"cache_row": False, "order": "rows", "threads": 32, "vector_width": 1, "coarsening": 1}
"""Rows in chunks of 32 elements."""
DESIGNS: dict[str, dict[str, Any]] = {
    "best": {},
    "chunks": CHUNKS,
    "several rows": {**CHUNKS, "coarsening": 8, "vector_width": 4},
    "split rows": {**CHUNKS, "split": 4, "vector_width": 2},
    "several split rows": {**CHUNKS, "coarsening": 8, "vector_width": 8, "split": 2},
    "phases apart": {"interleave": False},
    "no registers": {"via_registers": False},
    "rows apart": {"whole_rows": False},
}
"""Changes to all stages of the first seed."""
LONG_ROW_DESIGNS = ("chunks", "several rows", "split rows", "several split rows")

EXTRA_TASKS: dict[str, tuple[str, str, str]] = {
    "transposed": (
        "(a.transpose(1, 2) * 2).contiguous() + b",
        "torch.randn(3, 33, 70), torch.randn(3, 70, 33)",
        "pass",
    ),
    "long rows": ("return a.softmax(-1), F.instance_norm(a)", "torch.randn(1, 4, 500)", "pass"),
    "-inf": ("torch.where(b > 0, a, -math.inf).softmax(-1)", "torch.randn(4, 300), torch.randn(300)", "pass"),
    "functions": (
        "return (a.expm1() + (b * b).log1p(), (3 * a).round() + b.trunc(), torch.fmod(a, 0.7), (b * b).pow(1.3), a.pow(5))",
        "torch.randn(9, 41), torch.randn(9, 41)",
        "pass",
    ),
    "many rows": ("(a * a).sum()", "torch.randn(1030, 12)", "pass"),
    "triangles": (
        "return (torch.triu(a @ b), torch.tril(a @ b, -70) + 1, torch.triu(a @ b, 70))",
        "torch.randn(200, 40), torch.randn(40, 200)",
        "pass",
    ),
    "image": (
        "F.relu(self.c(a))",
        "torch.randn(1, 3, 9, 10)",
        "self.c = nn.Conv2d(3, 17, 3, padding=1, stride=2)",
    ),
    "convolution in time": (
        "self.c(a)",
        "torch.randn(2, 6, 40)",
        "self.c = nn.Conv1d(6, 17, 5, stride=2, dilation=2)",
    ),
    "each channel by itself": (
        "self.c(a)",
        "torch.randn(2, 3, 8, 9)",
        "self.c = nn.Conv2d(3, 3, 3, padding=1, groups=3)",
    ),
    "running": (
        "return b.cummax(-1)[0], b.cummin(0)[0], c.cummax(1)[0], (a > 0).cummin(1)[0], a.cummin(0)[0], (a > 0).cumsum(-1)",
        "torch.randn(5, 40), torch.randint(0, 9, (5, 40)), torch.randint(-9, 9, (5, 40)).to(torch.int8)",
        "pass",
    ),
    "whole numbers": (
        "return b.argmax(-1), b.amin(0), c.amax(-1), c.min(), d.max(), (a > 0).max(-1)[1], (a > 0) + (b > 4), b.fmod(3),"
        "b.pow(3), b.floor(), b.logsumexp(-1), torch.arange(70000).sum() - b.amax(), torch.arange(40).double() / 3",
        "torch.randn(5, 40), torch.randint(-9, 9, (5, 40)), torch.randint(-9, 9, (5, 40)).to(torch.int8),"
        "torch.randint(0, 250, (5, 40)).to(torch.uint8)",
        "pass",
    ),
    "one row": ("a.cumsum(0), a.amax(), F.max_pool1d(a[None, None], 40)", "torch.randn(40)", "pass"),
    "half precision": (
        "F.relu(self.l(a * 2))",
        "torch.randn(32, 48).half()",
        "self.l = nn.Linear(48, 40).half()",
    ),
}
IMPLICIT_GEMM: dict[str, tuple[str, str, str]] = {
    "tiled convolution": (
        "F.relu(self.c(a)) * 2",
        "torch.randn(2, 32, 9, 10)",
        "self.c = nn.Conv2d(32, 24, 3, padding=1)",
    ),
    "tiled convolution in space": (
        "F.group_norm(self.c(a), 4)",
        "torch.randn(1, 3, 6, 7, 5)",
        "self.c = nn.Conv3d(3, 16, (3, 2, 3), padding=(0, 1, 1), stride=(2, 1, 1), dilation=(1, 2, 1))",
    ),
    "tiled transposed convolution": (
        "F.relu(self.c(a) + b)",
        "torch.randn(1, 8, 5, 4), torch.randn(16, 1, 1)",
        "self.c = nn.ConvTranspose2d(8, 16, (5, 4), stride=(3, 2), padding=(2, 1))",
    ),
    "tiled transposed convolution with an odd result": (
        "self.c(a), F.softmax(self.c(a), 1)",
        "torch.randn(1, 32, 3, 4)",
        "self.c = nn.ConvTranspose2d(32, 16, 3, stride=2)",
    ),
    "tiled dilated transposed convolution": (
        "self.c(a)",
        "torch.randn(2, 8, 9)",
        "self.c = nn.ConvTranspose1d(8, 16, 4, padding=2, dilation=2)",
    ),
}
"""Convolutions in the form of tiled products."""
TRANSPOSED: dict[str, tuple[str, str, str]] = {
    "transposed triangles": (
        "torch.triu(a @ b), torch.tril(a @ b, -2) * 2",
        "torch.randn(70, 40), torch.randn(40, 70)",
        "pass",
    )
}
"""Masked products whose right operand is stored transposed first."""
CHANNEL_ROWS: dict[str, tuple[str, str, str]] = {
    "smallest channel": (
        "y = self.c(a); return (y * y + 1).min(1, keepdim=True)[0].log()",
        "torch.randn(2, 16, 9, 10)",
        "self.c = nn.Conv2d(16, 20, 3, padding=1)",
    ),
    "channels of phases": (
        "y = self.c(a); return F.softmax(y, 1).sigmoid(), y.logsumexp(1, keepdim=True) - 1, y + b",
        "torch.randn(1, 32, 3, 4), torch.randn(20, 1, 1)",
        "self.c = nn.ConvTranspose2d(32, 20, 3, stride=2)",
    ),
    "channels side by side": (
        "F.softmax(self.c(a), 1) * b",
        "torch.randn(2, 8, 5, 6), torch.randn(33, 1, 1)",
        "self.c = nn.ConvTranspose2d(8, 33, 4, stride=2, padding=1)",
    ),
    "channels in space": (
        "F.relu(self.c(a) - self.c(a).mean(1, keepdim=True)), F.softmax(self.v(a), 1).argmax(1)",
        "torch.randn(1, 3, 6, 7, 5)",
        "self.c, self.v = nn.Conv3d(3, 17, (3, 2, 3), stride=(2, 1, 1)), nn.Conv3d(3, 64, 1)",
    ),
}
"""Convolutions whose channels are reduced in registers."""
EXTRA_TASKS["products stored by column"] = (
    "(a @ b).permute(1, 2, 0) * 2, F.relu(b.mT @ a.mT).mT",
    "torch.randn(2, 40, 24), torch.randn(2, 24, 35)",
    "pass",
)
EXTRA_TASKS["rows of products"] = (
    "y = self.l(a); return F.layer_norm(y + b, (37,)), y.sigmoid().logsumexp(1), y.argmin(-1), (c @ c).softmax(2).mT * 2",
    "torch.randn(70, 48), torch.randn(70, 37), torch.randn(2, 40, 40)",
    "self.l = nn.Linear(48, 37)",
)
EXTRA_TASKS |= IMPLICIT_GEMM | CHANNEL_ROWS | TRANSPOSED
UNSUPPORTED = "float64"
"""A family that needs matrix products that the Triton backend does not support."""
NOT_INTERPRETED = ("bfloat16", UNSUPPORTED, "convolutions")
"""Families that the interpreter gets wrong or does not support; EXTRA_TASKS has smaller ones of their kind."""
DESIGNS_BY_TASK = {
    **dict.fromkeys(("sums of rows", "losses", "masks"), ("best", "chunks")),
    **dict.fromkeys(("scans", "running", "sums of other dimensions"), ("best", "several rows")),
    "norms": ("best", "several split rows"),
    "matrix products": ("best", "no registers", "several split rows"),
    "triangles": ("best", "no registers"),
    "a chain over rows": LONG_ROW_DESIGNS,
    "long rows": LONG_ROW_DESIGNS,
    "-inf": ("best", *LONG_ROW_DESIGNS),
    **dict.fromkeys(("many rows", "whole numbers"), ("best", "chunks")),
    **dict.fromkeys(("tiled transposed convolution", "channels side by side"), ("best", "phases apart")),
    "products stored by column": ("best", "phases apart"),
    "rows of products": ("best", "no registers", "rows apart"),
    "tiled transposed convolution with an odd result": ("best", "phases apart"),
}
INTERPRETED = {
    name: DESIGNS_BY_TASK.get(name, ("best",))
    for name in (*FAMILIES, *EXTRA_TASKS)
    if name not in NOT_INTERPRETED
}
"""The designs that are interpreted for each family and extra task."""

ALL_SEEDS = ("scans", "running", "whole numbers", "one row")
"""All seeds of these are compiled; of others, the first."""

DISASSEMBLED: dict[str, tuple[str, str]] = {
    "element-wise": ("F.relu(a) * 2", "torch.randn(1024, 4096)"),
    "GELU": ("F.gelu(a)", "torch.randn(1024, 4096)"),
    "cheap GELU": ("F.gelu(a)", "torch.randn(1024, 4096)"),
    "rows": ("a.softmax(-1)", "torch.randn(1024, 4096)"),
    "masked": (
        "a.masked_fill(torch.ones(512, 512, dtype=torch.bool).triu(1), -math.inf).softmax(-1)",
        "torch.randn(8, 512, 512)",
    ),
    "few rows": ("F.layer_norm(a, (1048576,))", "torch.randn(4, 1048576)"),
    "transposed": ("a.transpose(1, 2).contiguous()", "torch.randn(4, 512, 512)"),
    "rows of a product": (
        "F.softmax(F.linear(a, b), -1)",
        "torch.randn(4096, 512), torch.randn(100, 512)",
    ),
    "product": ("F.gelu(F.linear(a, b))", "torch.randn(512, 2048), torch.randn(1024, 2048)"),
    "strided product": ("a @ b", "torch.randn(512, 2048), torch.randn(2048, 1024)"),
    "half product": ("a @ b", "torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()"),
}


def first_design(program: Program) -> Design:
    from kernelpro.authors.playbook.triton.backend import BACKEND

    return BACKEND.seeds(program)[0].design


def program_by_name(name: str, task: Task) -> Program:
    forms = {"implicit_gemm": IMPLICIT_GEMM, "channel_rows": CHANNEL_ROWS, "transposed": TRANSPOSED}
    form = next((form for form, names in forms.items() if name in names), "")
    return programs_of(operator_graph_of(task), "cuda")[form] if form else program_of(task)


def tasks() -> dict[str, Task]:
    return {**FAMILIES, **{name: make_task(*texts) for name, texts in EXTRA_TASKS.items()}}


def interpret_fast_math(math_mode: str, folder: Path) -> None:
    """Compares a math mode's functions with the judge's tolerance."""
    from playbook_harness import KernelChecker

    from kernelpro.authors.playbook.triton.backend import BACKEND

    checker = KernelChecker(math_task(math_mode), folder, BACKEND)
    source = BACKEND.write(checker.program, replace(first_design(checker.program), math=math_mode))  # type: ignore[arg-type]
    assert LIBDEVICE in source
    source = source.replace(LIBDEVICE, "import libdevice_on_cpu as libdevice\n")
    report(f"fast math, {math_mode}", math_mode, lambda: {"excesses": checker.excesses(source)})


def interpret(names: list[str]) -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    from playbook_harness import KernelChecker

    from kernelpro.authors.playbook.triton.backend import BACKEND

    warnings.simplefilter("ignore")  # masked elements overflow or divide by zero
    all_tasks = tasks()
    with tempfile.TemporaryDirectory() as folder:
        for math_mode in MATH_TASKS:
            interpret_fast_math(math_mode, Path(folder))
        for name in names:
            program = program_by_name(name, all_tasks[name])
            checker = KernelChecker(all_tasks[name], Path(folder), BACKEND, program=program)
            for label in INTERPRETED[name]:
                design = first_design(checker.program).with_all_stages(**DESIGNS[label])
                source = BACKEND.write(checker.program, design)
                parse(source)
                parsed_design = parse_design(source)
                parsed = {
                    "round_trip": parse_design(BACKEND.write(checker.program, parsed_design)) == parsed_design
                }
                report(
                    name,
                    label,
                    lambda checker=checker, design=design, parsed=parsed: {
                        "errors": checker.errors(design),
                        **parsed,
                    },
                )


def report(name: str, design: str, check: Callable[[], dict[str, Any]]) -> None:
    """Prints one line: the result of the check, or why it failed; the other candidates are still checked."""
    try:
        result = check()
    except Exception as error:  # whatever Triton raises for a kernel that it rejects
        result = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps({"name": name, "design": design, **result}), flush=True)


def compile_all(root: Path, names: list[str]) -> None:
    from kernelpro.authors.playbook.triton.backend import BACKEND

    os.environ["TRITON_CACHE_DIR"] = str(root)
    path = root / "candidate.py"
    all_tasks = tasks()
    for math_mode in MATH_TASKS:
        task = math_task(math_mode)
        program = program_of(task)
        path.write_text(BACKEND.write(program, replace(first_design(program), math=math_mode)))  # type: ignore[arg-type]
        report(f"fast math, {math_mode}", math_mode, lambda task=task: {"grid": compiled(path, task)})
    for name in names:
        task = all_tasks[name]
        program = program_by_name(name, task)
        for number, seed in enumerate(BACKEND.seeds(program)[: None if name in ALL_SEEDS else 1]):
            path.write_text(BACKEND.write(program, seed.design))
            report(name, str(number), lambda task=task: {"grid": compiled(path, task)})


def compiled(path: Path, task: Task) -> tuple[int, ...]:
    sys.path.append(str(Path(__file__).parent.parent / "defects"))
    import building

    return building.compile_triton(path, Reference(task, "meta", 0))


def disassemble_all(root: Path, names: list[str]) -> None:
    from kernelpro.authors.playbook.triton.backend import BACKEND
    from kernelpro.lab.profile import sass

    if sass.find_tool("nvdisasm") is None:
        return
    for name in names:
        task = make_task(*DISASSEMBLED[name])
        math_mode = "approximate" if name == "cheap GELU" else "library"
        program = program_of(task)
        folder = root / name.replace(" ", "_")
        folder.mkdir()
        os.environ["TRITON_CACHE_DIR"] = str(folder)
        path = folder / "candidate.py"
        path.write_text(BACKEND.write(program, replace(first_design(program), math=math_mode)))  # type: ignore[arg-type]
        compiled(path, task)
        files = {
            f"{file.parent.name}/{file.name}": file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        static = sass.analyze(files, path.read_text())
        print(
            json.dumps(
                {
                    "name": name,
                    "kernels": {kernel: code.to_json() for kernel, (code,) in static.kernels.items()},
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "interpret":
        interpret(words)
    else:
        separator = words.index("--")
        compile_all(Path(words[0]), words[1:separator])
        disassemble_all(Path(words[0]), words[separator + 1 :])
