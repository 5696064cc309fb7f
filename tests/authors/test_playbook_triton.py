"""Families in Triton: computed by its interpreter, compiled for a Hopper; and what that would run, disassembled."""

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
from playing import QUICK, Trial, program, quick, task
from test_playbook_families import FAMILIES
from triton_trials import DISASSEMBLED, EVERY, HELD, OWN, UNWRITTEN, tasks

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.authors.playbook.triton import backend as triton
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.profile import sass

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_disassembler = pytest.mark.skipif(
    sass.tool("nvdisasm") is None, reason="nvdisasm not found (Triton's wheel has it)"
)

USUAL = ("activations", "norms", "scans", "matrix products")
"""One of each kind; each takes seconds to compile."""
_MOST = 20.0
"""Times the reference's own error against float64. What is wrong is wrong by thousands."""


def tried(*arguments: str, **environment: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(Path(__file__).with_name("triton_trials.py")), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def names(known: Iterable[str], usual: tuple[str, ...] = USUAL) -> list[Any]:
    """Parameters; those that are left to `make test-long` marked."""
    return [name if name in usual else pytest.param(name, marks=pytest.mark.long) for name in known]


def chosen(request: pytest.FixtureRequest, test: str) -> list[str]:
    """The names that a test of this run has."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == test]
    return [item.callspec.params["name"] for item in items]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    return by_name(
        tried(
            "interpret",
            *chosen(request, "test_designs_compute_what_the_reference_does"),
            TRITON_INTERPRET="1",
        )
    )


@pytest.fixture(scope="module")
def for_hopper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return tried(
        "compile",
        str(tmp_path_factory.mktemp("hopper")),
        *chosen(request, "test_designs_are_what_a_compiler_takes"),
    )


@pytest.fixture(scope="module")
def compiled(for_hopper: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return by_name([line for line in for_hopper if "kernels" not in line])


def by_name(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["name"], []).append(line)
    return found


@pytest.mark.parametrize("name", names(HELD, USUAL[1::2]))
def test_designs_compute_what_the_reference_does(
    name: str, interpreted: dict[str, list[dict[str, Any]]]
) -> None:
    lines = interpreted[name]
    assert [line["design"] for line in lines] == list(HELD[name])
    for line in lines:
        assert "failed" not in line, line
        assert max(line["errors"]) < _MOST, line["design"]
        assert line["lasting"], "what was tuned is read back from the source"


@pytest.mark.parametrize("math_mode", QUICK)
def test_quick_mathematics_is_inside_the_judges_limits(
    math_mode: str, interpreted: dict[str, list[dict[str, Any]]]
) -> None:
    (line,) = interpreted[f"quick, {math_mode}"]
    assert "failed" not in line, line
    assert (
        set(line["excesses"]) >= {"as given", "x3", "x0.01", "negated"}
        and max(line["excesses"].values()) <= 1
    ), line


@pytest.mark.parametrize("math_mode", QUICK)
def test_quick_mathematics_is_what_a_compiler_takes(
    math_mode: str, compiled: dict[str, list[dict[str, Any]]]
) -> None:
    (line,) = compiled[f"quick, {math_mode}"]
    assert "failed" not in line, line


@pytest.mark.parametrize("name", names((name for name in (*FAMILIES, *OWN) if name != UNWRITTEN), USUAL[::3]))
def test_designs_are_what_a_compiler_takes(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    assert len(compiled[name]) > 1 if name in EVERY else len(compiled[name]) == 1
    for line in compiled[name]:
        assert "failed" not in line, line


@pytest.mark.parametrize("name", [name for name in (*FAMILIES, *OWN) if name != UNWRITTEN])
def test_every_word_is_one_of_tritons_language(name: str) -> None:
    """Of the first designs, and of all that moves make of the best of them."""
    import triton.language as tl

    read = program(tasks()[name])
    designs = [seed.design for seed in triton.BACKEND.seeds(read)]
    designs += [made for move in triton.BACKEND.moves if (made := move.apply(read, designs[0]))]
    for design in designs:
        for word, call in words(triton.write(read, design)):
            assert hasattr(tl, word), word
            if call:
                named = {str(keyword.arg): keyword.value for keyword in call.keywords}
                inspect.signature(getattr(getattr(tl, word), "fn", getattr(tl, word))).bind(
                    *call.args, **named
                )


def words(source: str) -> Iterator[tuple[str, ast.Call | None]]:
    """What a source takes from `tl`, and how it calls it."""
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
        assert set(kernels) == set(DISASSEMBLED)
        assert all(facts["stack"] == 0 for of_task in kernels.values() for facts in of_task.values())

    @pytest.mark.parametrize("name", ["element-wise", "rows", "masked", "transposed"])
    def test_memory_is_accessed_16_bytes_at_a_time(
        self, name: str, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        widths = kernels[name]["stage0"]["widths"]
        assert set(widths["global_load"]) == set(widths["global_store"]) == {"128"}

    def test_cheap_mathematics_takes_fewer_instructions(
        self, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        exact, cheap = (sum(kernels[name]["stage0"]["mix"].values()) for name in ("GELU", "cheap GELU"))
        assert cheap < 0.7 * exact

    def test_a_row_is_read_once(self, kernels: dict[str, dict[str, dict[str, Any]]]) -> None:
        rows = kernels["rows"]["stage0"]
        assert rows["mix"]["global_load"] * 4 * rows["threads"] == 4096 and not rows["loops"]

    def test_mean_and_variance_of_a_long_row_are_made_in_one_kernel(
        self, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        assert set(kernels["few rows"]) == {"stage0_part0", "stage0"}

    @pytest.mark.parametrize("name", ["product", "half product"])
    def test_products_are_made_on_tensor_cores_and_fetched_ahead(
        self, name: str, kernels: dict[str, dict[str, dict[str, Any]]]
    ) -> None:
        (facts,) = kernels[name].values()
        assert facts["mix"]["hgmma"] > 0
        assert set(facts["widths"]["async_copy"]) == {"128"}


@pytest.mark.gpu
@pytest.mark.parametrize("math_mode", QUICK)
def test_quick_mathematics_is_inside_the_judges_limits_on_a_gpu(math_mode: Any, tmp_path: Path) -> None:
    trial = Trial(quick(math_mode), tmp_path, triton.BACKEND, "cuda")
    excesses = trial.excesses(triton.write(trial.program, replace(trial.designs()[0], math=math_mode)))
    assert max(excesses.values()) <= 1, excesses


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "float64"])
def test_every_design_computes_it_on_a_gpu(name: str, tmp_path: Path) -> None:
    trial = Trial(FAMILIES[name], tmp_path, triton.BACKEND, "cuda")
    for design in trial.designs():
        assert max(trial.errors(replace(design, precision="fp32"))) < _MOST, design


def test_precision_is_that_of_the_design() -> None:
    given = program(task("a @ b", "torch.randn(32, 32), torch.randn(32, 32)"))
    design = triton.BACKEND.seeds(given)[0].design
    assert 'input_precision="tf32"' in triton.write(given, design)
    exact = parse_design(design.to_comment().replace('"math"', '"precision": "fp32", "math"'))
    assert 'input_precision="ieee"' in triton.write(given, exact)


@pytest.mark.parametrize(
    ("forward", "inputs", "reason"),
    [
        ("a @ b", "torch.randn(32, 32).double(), torch.randn(32, 32).double()", "products of float64"),
        ("a.tanh()", "torch.randn(32).double()", "tanh of float64"),
        ("a ** b", "torch.randint(1, 9, (32,)), torch.randint(1, 9, (32,))", "pow of int64"),
    ],
)
def test_what_triton_does_not_have_is_refused(forward: str, inputs: str, reason: str) -> None:
    given = program(task(forward, inputs))
    with pytest.raises(NoProposal, match=reason):
        triton.write(given, triton.BACKEND.seeds(given)[0].design)


@pytest.mark.parametrize(
    "forward",
    ["a.softmax(-1)", "a.sum(0)", "F.linear(a, a)", "a.t().contiguous()", "F.max_pool1d(a, 3, 1, 1)"],
)
def test_moves_and_retreats_give_other_candidates(forward: str) -> None:
    given = program(task(forward, "torch.randn(512, 512)"))
    design = triton.BACKEND.seeds(given)[0].design
    made = [found for move in triton.BACKEND.moves if (found := move.apply(given, design))]
    made += triton.BACKEND.fallbacks(given, design)
    sources = {triton.write(given, one) for one in (design, *made)}
    assert len(made) >= 2 and len(sources) == len(made) + 1


def test_moves_answer_tools_that_there_are() -> None:
    assert {name for move in triton.BACKEND.moves for name in move.diagnostics} <= registry().keys()
