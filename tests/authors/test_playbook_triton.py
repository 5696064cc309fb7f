"""The playbook's Triton backend: kernels run in Triton's interpreter, compiled for Hopper, and disassembled."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playbook_harness import MATH_TASKS, KernelChecker, make_task, math_task, program_of
from test_playbook_families import FAMILIES
from triton_trials import (
    ALL_SEEDS,
    DISASSEMBLED,
    EXTRA_TASKS,
    INTERPRETED,
    UNSUPPORTED,
    program_by_name,
    tasks,
)

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.authors.playbook.triton import backend as triton
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.profile import sass

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_disassembler = pytest.mark.skipif(
    sass.find_tool("nvdisasm") is None, reason="nvdisasm not found (Triton's wheel has it)"
)

SMALL_TASKS = (
    "not a number",
    "triangles",
    "tiled convolution",
    "tiled transposed convolution with an odd result",
    "transposed triangles",
    "rows of products",
    "smallest channel",
    "channels of phases",
)
"""Small enough to be interpreted always."""
WIDE = ("element-wise", "rows", "masked", "transposed")
SIMILAR = ("masked", "half product")
"""Their machine code has what that of rows and of products has: disassembled in `make test-long`."""
_MAX_ERROR = 20.0
"""In units of the reference's own error against float64. Wrong kernels are off by thousands."""


def run_trials(*arguments: str, **environment: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(Path(__file__).with_name("triton_trials.py")), *arguments]
    process = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def with_marks(names: Iterable[str], default: tuple[str, ...]) -> list[Any]:
    """Test parameters; all but the default ones are marked for `make test-long`."""
    return [name if name in default else pytest.param(name, marks=pytest.mark.long) for name in names]


def selected_names(request: pytest.FixtureRequest, test: str) -> list[str]:
    """The names with which a test runs in this session."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == test]
    return [item.callspec.params["name"] for item in items]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    return by_name(
        run_trials(
            "interpret",
            *selected_names(request, "test_interpreted_designs_match_the_reference"),
            TRITON_INTERPRET="1",
        )
    )


@pytest.fixture(scope="module")
def for_hopper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return run_trials(
        "compile",
        str(tmp_path_factory.mktemp("hopper")),
        *selected_names(request, "test_designs_compile"),
        "--",
        *(name for name in DISASSEMBLED if name not in SIMILAR or name in disassembled_by_name(request)),
    )


def disassembled_by_name(request: pytest.FixtureRequest) -> list[str]:
    """The names of larger tasks with which tests run in this session."""
    tests = (
        "test_accesses_are_16_bytes_wide",
        "test_matrix_products_use_tensor_cores_and_async_copies",
    )
    return [name for test in tests for name in selected_names(request, test)]


@pytest.fixture(scope="module")
def compiled(for_hopper: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return by_name([line for line in for_hopper if "kernels" not in line])


def by_name(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    lines_by_name: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        lines_by_name.setdefault(line["name"], []).append(line)
    return lines_by_name


@pytest.mark.parametrize("name", with_marks(INTERPRETED, ("norms", *SMALL_TASKS)))
def test_interpreted_designs_match_the_reference(
    name: str, interpreted: dict[str, list[dict[str, Any]]]
) -> None:
    lines = interpreted[name]
    assert [line["design"] for line in lines] == list(INTERPRETED[name])
    for line in lines:
        assert "failed" not in line, line
        assert max(line["errors"]) < _MAX_ERROR, line["design"]
        assert line["round_trip"], "the design parsed from the source writes the same source"


@pytest.mark.parametrize("math_mode", MATH_TASKS)
def test_fast_math_is_within_tolerance(math_mode: str, interpreted: dict[str, list[dict[str, Any]]]) -> None:
    (line,) = interpreted[f"fast math, {math_mode}"]
    assert "failed" not in line, line
    assert (
        set(line["excesses"]) >= {"as given", "x3", "x0.01", "negated"}
        and max(line["excesses"].values()) <= 1
    ), line


@pytest.mark.parametrize("math_mode", MATH_TASKS)
def test_fast_math_compiles(math_mode: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    (line,) = compiled[f"fast math, {math_mode}"]
    assert "failed" not in line, line


@pytest.mark.parametrize(
    "name",
    with_marks((name for name in (*FAMILIES, *EXTRA_TASKS) if name != UNSUPPORTED), ("activations",)),
)
def test_designs_compile(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    assert len(compiled[name]) > 1 if name in ALL_SEEDS else len(compiled[name]) == 1
    for line in compiled[name]:
        assert "failed" not in line, line


@pytest.mark.parametrize("name", [name for name in (*FAMILIES, *EXTRA_TASKS) if name != UNSUPPORTED])
def test_kernels_use_existing_triton_functions(name: str) -> None:
    """For all seeds, and for every move from the first."""
    import triton.language as tl

    program = program_by_name(name, tasks()[name])
    designs = [seed.design for seed in triton.BACKEND.seeds(program)]
    designs += [new for move in triton.BACKEND.moves if (new := move.apply(program, designs[0]))]
    for design in designs:
        for word, call in triton_calls(triton.write(program, design)):
            assert hasattr(tl, word), word
            if call:
                named = {str(keyword.arg): keyword.value for keyword in call.keywords}
                inspect.signature(getattr(getattr(tl, word), "fn", getattr(tl, word))).bind(
                    *call.args, **named
                )


def triton_calls(source: str) -> Iterator[tuple[str, ast.Call | None]]:
    """The attributes of `tl` that a source uses, and how it calls them."""
    for node in ast.walk(ast.parse(source)):
        function = node.func if isinstance(node, ast.Call) else node
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "tl"
        ):
            yield function.attr, node if isinstance(node, ast.Call) else None


@needs_disassembler
class TestDisassembled:
    @pytest.fixture(scope="class")
    @classmethod
    def kernels(cls, for_hopper: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
        return {line["name"]: line["kernels"] for line in for_hopper if "kernels" in line}

    def test_nothing_spills(self, kernels: dict[str, dict[str, dict[str, Any]]]) -> None:
        assert set(kernels) | set(SIMILAR) == set(DISASSEMBLED)
        assert all(facts["stack"] == 0 for of_task in kernels.values() for facts in of_task.values())

    @pytest.mark.parametrize("name", with_marks(WIDE, tuple(set(WIDE) - set(SIMILAR))))
    def test_accesses_are_16_bytes_wide(
        self, name: str, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        widths = kernels[name]["stage0"]["widths"]
        assert set(widths["global_load"]) == set(widths["global_store"]) == {"128"}

    def test_approximate_math_takes_fewer_instructions(
        self, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        exact, cheap = (sum(kernels[name]["stage0"]["mix"].values()) for name in ("GELU", "cheap GELU"))
        assert cheap < 0.7 * exact

    def test_a_row_is_read_once(self, kernels: dict[str, dict[str, dict[str, Any]]]) -> None:
        rows = kernels["rows"]["stage0"]
        assert rows["mix"]["global_load"] * 4 * rows["threads"] == 4096 and not rows["loops"]

    def test_mean_and_variance_of_a_long_row_share_a_kernel(
        self, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        assert set(kernels["few rows"]) == {"stage0_part0", "stage0"}

    @pytest.mark.parametrize(
        "name",
        with_marks(
            ("product", "rows of a product", "strided product", "half product"),
            ("product", "rows of a product", "strided product"),
        ),
    )
    def test_matrix_products_use_tensor_cores_and_async_copies(
        self, name: str, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        (facts,) = kernels[name].values()
        assert facts["mix"]["hgmma"] > 0
        assert set(facts["widths"]["async_copy"]) == {"128"}


@pytest.mark.gpu
@pytest.mark.parametrize("math_mode", MATH_TASKS)
def test_fast_math_is_within_tolerance_on_a_gpu(math_mode: Any, tmp_path: Path) -> None:
    checker = KernelChecker(math_task(math_mode), tmp_path, triton.BACKEND, "cuda")
    excesses = checker.excesses(triton.write(checker.program, replace(checker.designs()[0], math=math_mode)))
    assert max(excesses.values()) <= 1, excesses


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "float64"])
def test_every_design_is_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(FAMILIES[name], tmp_path, triton.BACKEND, "cuda")
    for design in checker.designs():
        assert max(checker.errors(replace(design, precision="fp32"))) < _MAX_ERROR, design


def test_design_sets_the_precision() -> None:
    program = program_of(make_task("a @ b", "torch.randn(32, 32), torch.randn(32, 32)"))
    design = triton.BACKEND.seeds(program)[0].design
    assert 'input_precision="tf32"' in triton.write(program, design)
    exact = parse_design(design.to_comment().replace('"math"', '"precision": "fp32", "math"'))
    assert 'input_precision="ieee"' in triton.write(program, exact)


@pytest.mark.parametrize(
    ("forward", "inputs", "reason"),
    [
        ("a @ b", "torch.randn(32, 32).double(), torch.randn(32, 32).double()", "matrix product of float64"),
        ("a.tanh()", "torch.randn(32).double()", "tanh of float64"),
        ("a ** b", "torch.randint(1, 9, (32,)), torch.randint(1, 9, (32,))", "pow of int64"),
    ],
)
def test_unsupported_operations_are_rejected(forward: str, inputs: str, reason: str) -> None:
    program = program_of(make_task(forward, inputs))
    with pytest.raises(NoProposal, match=reason):
        triton.write(program, triton.BACKEND.seeds(program)[0].design)


@pytest.mark.parametrize(
    "forward",
    ["a.softmax(-1)", "a.sum(0)", "F.linear(a, a)", "a.t().contiguous()", "F.max_pool1d(a, 3, 1, 1)"],
)
def test_moves_and_fallbacks_give_distinct_candidates(forward: str) -> None:
    program = program_of(make_task(forward, "torch.randn(512, 512)"))
    design = triton.BACKEND.seeds(program)[0].design
    others = [new for move in triton.BACKEND.moves if (new := move.apply(program, design))]
    others += triton.BACKEND.fallbacks(program, design)
    sources = {triton.write(program, other) for other in (design, *others)}
    assert len(others) >= 2 and len(sources) == len(others) + 1


def test_moves_name_existing_diagnostics() -> None:
    assert {name for move in triton.BACKEND.moves for name in move.diagnostics} <= registry().keys()
