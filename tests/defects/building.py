"""Builds candidates for a Hopper GPU without one, and prints the facts of their machine code.

    python building.py FOLDER CANDIDATE...

One JSON line per candidate. CUDA is built by importing the candidate; Triton by calling its model on meta tensors,
under a driver that only names the target device. Work is counted on meta tensors too.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kernelpro.lab.languages import detect
from kernelpro.lab.profile import sass
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference
from kernelpro.lab.tree import unflatten
from kernelpro.records import Task

TASKS = Path(__file__).parent / "tasks"


def about(path: Path) -> dict[str, str]:
    """Return the fields of a candidate's first line."""
    fields = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").split(" | ")
    return dict(field.partition(": ")[::2] for field in fields)


def task(path: Path) -> Reference:
    return Reference(Task.from_file(TASKS / f"{about(path)['task']}.py"), "meta", 0)


def task_facts(path: Path) -> dict[str, Any]:
    """Return the work of a candidate's task, and the precision that it allows."""
    reference = task(path)
    return {
        "work": work.count(reference, 0)[0].to_json(),
        "precision": "native" if reference.dtype() is torch.bfloat16 else "tf32",
    }


def build(folder: Path, path: Path) -> dict[str, Any]:
    """Build and disassemble one candidate, in its own process."""
    os.environ |= {
        "KERNELPRO_BUILD_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder),
        "KERNELPRO_CUDA_ARCH": "90a",
    }
    source = path.read_text(encoding="utf-8")
    grid: tuple[int, ...] = ()
    if detect(source).name == "triton":
        grid = compile_triton(path, task(path))
    else:
        module(path)
    files = {
        f"{file.parent.name}/{file.name}": file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }
    static = sass.analyze(files, source)
    return {
        "name": path.stem,
        "kernels": {name: [code.to_json() for code in variants] for name, variants in static.kernels.items()},
        "warnings": static.warnings,
        "skipped": [note.to_json() for note in static.skipped],
        "grid": grid,
    }


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    candidate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(candidate)
    return candidate


def compile_triton(path: Path, reference: Reference) -> tuple[int, ...]:
    """Call the candidate, which compiles its launches for the absent device; return the grid of the last launch."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 90, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
    grids: list[tuple[int, ...]] = []
    run = JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        grids.append(grid)
        return run(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = compiled
    with torch.no_grad():
        model = module(path).ModelNew(*reference.init_inputs).to("meta")
        model(*unflatten(*reference.inputs(0)))
    return grids[-1]


def main() -> None:
    root, *paths = map(Path, sys.argv[1:])
    torch.count_nonzero = lambda tensor: tensor.numel()  # type: ignore[assignment]  # random inputs have no zeros
    facts = [task_facts(path) for path in paths]  # before forking, so that torch's modules are loaded once
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        answers = [pool.apply_async(build, (root / path.stem, path)) for path in paths]
        for answer, more in zip(answers, facts, strict=True):
            print(json.dumps(answer.get() | more), flush=True)


if __name__ == "__main__":
    main()
