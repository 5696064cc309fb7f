"""The playbook's CUDA backend: kernels run on the CPU and are compared with the reference; nvcc compiles some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_on_cpu import compiler, fenced, guarded
from playbook_harness import (
    MATH_TASKS,
    KernelChecker,
    make_task,
    math_task,
    operator_graph_of,
    program_of,
)
from test_playbook_families import FAMILIES

from kernelpro import runtime
from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.cuda.backend import BACKEND
from kernelpro.authors.playbook.cuda.moves import MOVES
from kernelpro.authors.playbook.cuda.sliding_windows import find_overlap
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, parse_design
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.languages.native import LaunchError
from kernelpro.lab.profile import sass
from kernelpro.records import Task

_MAX_ERROR = 20.0
"""In units of the reference's own error against float64."""
_MAX_ERROR_16_BIT = 40000.0
"""If results are rounded to 16 bits. Wrong kernels are off by more."""
_MAX_ERROR_TF32 = 8000.0
"""If operands are rounded to TF32."""

ROW_DESIGNS = {
    "a block per row": StageDesign(threads=128, vector_width=4, cache_row=True),
    "warps": StageDesign(threads=128, coarsening=8, vector_width=2),
    "rows in shared memory": StageDesign(threads=64, coarsening=4, vector_width=4, cache_row=True),
    "strips": StageDesign(order="strips", threads=64, lanes=4, vector_width=2, cache_row=True),
    "strips in shared memory": StageDesign(order="strips", threads=64, vector_width=2, cache_row=True),
    "split rows": StageDesign(threads=64, vector_width=4, split=3),
    "split strips": StageDesign(order="strips", threads=64, lanes=2, vector_width=2, split=3),
}
TASKS: dict[str, Task] = {
    "softmax": make_task("F.softmax(a * 2, -1)", "torch.randn(11, 1200)"),
    "down the middle": make_task("return a.softmax(1), a.var(1), a.argmax(1)", "torch.randn(3, 70, 36)"),
    "running": make_task(
        "return a.cumsum(1), (a + 1).cumprod(0), b.flip(1).cumsum(1) - b",
        "torch.rand(9, 30), torch.randint(0, 9, (3, 1100))",
    ),
    "masked": make_task(
        "p = torch.arange(72); a = a.masked_fill(p[None] > p[:, None] + 3, -math.inf); return a.softmax(-1), a.exp().sum(1),"
        "torch.where(p[:, None] < 50, b, 0.0).sum(1), torch.where(p >= 7, b, 1.0).cumsum(-1)",
        "torch.randn(3, 72, 72), torch.randn(3, 72, 72)",
    ),
    "totals": make_task(
        "return F.mse_loss(a, b), (a * b).sum(-1).amax()", "torch.randn(300, 12), torch.randn(300, 12)"
    ),
}
HALVES = make_task(
    "F.gelu(a) * b, a.softmax(-1), a.mean(0)", "torch.randn(6, 264).half(), torch.randn(6, 264).half()"
)
TRANSPOSED = make_task(
    "return a.t() + b * a.t().exp(), c.permute(2, 0, 1) * 2",
    "torch.randn(70, 45), torch.randn(45, 70), torch.randn(33, 5, 40)",
)


class FencedChecker(KernelChecker):
    """A check in CUDA whose inputs are surrounded by poison values."""

    def __init__(self, task: Task, folder: Path):
        super().__init__(task, folder, BACKEND)
        self._leaves = [fenced(leaf) for leaf in self._leaves]


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiler(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def _emulated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    if "on_cpu" in request.fixturenames:
        monkeypatch.setattr(runtime, "cuda", request.getfixturevalue("on_cpu"))
    yield


def assert_correct(
    checker: KernelChecker, design: Design, monkeypatch: pytest.MonkeyPatch, max_error: float = _MAX_ERROR
) -> None:
    with guarded(monkeypatch):
        errors = checker.errors(design)
    halves = any(t.dtype in ("bfloat16", "float16") for t in checker.program.tensors)
    assert max(errors) <= (_MAX_ERROR_16_BIT if halves else max_error), (errors, design.to_comment())


@pytest.mark.parametrize("name", FAMILIES)
def test_first_designs_are_correct(
    name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = FencedChecker(FAMILIES[name], tmp_path)
    products = any(stage.product for stage in checker.program.stages)
    assert_correct(checker, checker.designs()[0], monkeypatch, _MAX_ERROR_TF32 if products else _MAX_ERROR)


def row_design_cases() -> Iterator[Any]:
    """All designs of one task, and two of each other; the rest are left to `make test-long`."""
    for name in TASKS:
        for design_name in ROW_DESIGNS:
            default = name == "softmax" or design_name in ("strips", "split rows")
            yield pytest.param(name, design_name, marks=() if default else pytest.mark.long)


@pytest.mark.parametrize(("name", "design_name"), list(row_design_cases()))
def test_row_designs_are_correct(
    name: str, design_name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = FencedChecker(TASKS[name], tmp_path)
    assert_correct(checker, all_stages(checker, ROW_DESIGNS[design_name]), monkeypatch)


def test_16_bit_types_and_transpose_tiles_are_correct(
    on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = FencedChecker(HALVES, tmp_path)
    assert_correct(
        halves, all_stages(halves, StageDesign(threads=64, vector_width=8, cache_row=True)), monkeypatch
    )
    transposed = FencedChecker(TRANSPOSED, tmp_path)
    for side in (32, 64):
        assert_correct(
            transposed,
            all_stages(transposed, StageDesign(order="tiles", threads=128, tile=side)),
            monkeypatch,
        )


WINDOWS: dict[str, tuple[Task, int]] = {
    "convolutions": (
        make_task(
            "self.same(a), F.relu(self.apart(a)) + a.mean(), self.wide(a), self.of_halves(b)",
            "torch.randn(2, 4, 12, 9), torch.randn(2, 3, 8, 8).half()",
            "self.same = nn.Conv2d(4, 4, 3, padding=1, groups=4); "
            "self.apart = nn.Conv2d(4, 8, (5, 3), stride=(2, 1), padding=(2, 0), groups=4, bias=False); "
            "self.wide = nn.Conv2d(4, 4, (3, 7), padding=(1, 6), dilation=(1, 2), groups=4); "
            "self.of_halves = nn.Conv2d(3, 3, 3, padding=1, groups=3).half()",
        ),
        4,
    ),
    "pools": (
        make_task(
            "F.max_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 3, 1, 1), F.max_pool2d(-a.abs() - 5, (5, 2), 1), F.max_pool2d(a, 2)",
            "torch.randn(2, 3, 16, 10)",
        ),
        3,
    ),
    "minima": (
        make_task(
            "-F.max_pool2d(-a, (3, 1), 1, (1, 0)) * F.avg_pool2d(a, (3, 1), 1, (1, 0))",
            "torch.randn(2, 3, 15, 10)",
        ),
        2,
    ),
}
"""Tasks, and how many of their stages have overlapping windows."""
LARGE_POOL = make_task("F.max_pool2d(a, 3, 2, 1)", "torch.randn(64, 64, 64, 64)")


@pytest.mark.parametrize("coarsening", [8, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", WINDOWS)
def test_overlapping_windows_share_loads(
    name: str, coarsening: int, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, overlapping = WINDOWS[name]
    checker = FencedChecker(task, tmp_path)
    design = overlapped(checker, coarsening)
    assert BACKEND.write(checker.program, design).count("for (int input_row = 0;") == overlapping
    assert_correct(checker, design, monkeypatch)


def test_first_design_shares_overlapping_windows() -> None:
    program = program_of(LARGE_POOL)
    first = BACKEND.seeds(program)[0].design
    assert first.stages[0].order == "tiles" and first.stages[0].coarsening == 8
    plain = StageDesign(order="strips")
    (overlap,) = (move for move in MOVES if move.name == "share windows")
    design = overlap.apply(program, Design("cuda", (plain,)))
    assert design and design.stages[0].coarsening == 8 and overlap.apply(program, first) is None


@pytest.mark.parametrize("math_mode", MATH_TASKS)
def test_fast_math_is_within_tolerance(math_mode: Any, on_cpu: Any, tmp_path: Path) -> None:
    checker = KernelChecker(math_task(math_mode), tmp_path, BACKEND)
    excesses = checker.excesses(BACKEND.write(checker.program, replace(checker.designs()[0], math=math_mode)))
    assert set(excesses) >= {"as given", "x3", "x0.01", "negated"} and max(excesses.values()) <= 1, excesses


def overlapped(checker: KernelChecker, coarsening: int) -> Design:
    """A design with this many outputs per thread, where windows overlap."""
    stage_design = StageDesign(order="tiles", threads=64)
    return Design(
        "cuda",
        tuple(
            replace(stage_design, coarsening=coarsening) if find_overlap(stage) else stage_design
            for stage in checker.program.stages
        ),
    )


def all_stages(checker: KernelChecker, stage_design: StageDesign) -> Design:
    return Design("cuda", (stage_design,) * len(checker.program.stages))


# --- products ----------------------------------------------------------------------------------------------


def exact_in_tf32(*shape: int) -> str:
    """Integers that TF32 represents exactly: tensor cores add no error."""
    return f"torch.randint(-8, 9, {shape}).float()"


MATMULS: dict[str, Task] = {
    "all ways round": make_task(
        "return a @ b, c.t() @ b * 2, a @ d.t(), F.relu(a * 2 - 1) @ d.t(), c.t() @ d.t() + 1, torch.bmm(e, e.transpose(1, 2)) + f",
        ", ".join(
            [
                exact_in_tf32(44, 40),
                exact_in_tf32(40, 52),
                exact_in_tf32(40, 36),
                exact_in_tf32(48, 40),
                exact_in_tf32(3, 35, 24),
                exact_in_tf32(35),
            ]
        ),
    ),
    "odd sizes": make_task(
        "F.gelu(a @ b + c) + d, (a * 2) @ b",
        ", ".join([exact_in_tf32(33, 35), exact_in_tf32(35, 37), exact_in_tf32(37), exact_in_tf32(33, 37)]),
    ),
    "halves": make_task(
        "F.gelu(a @ b) + c, a.t() @ c.t()[:, :40].t().contiguous(), (d * 2) @ e, d @ d.t()",
        "torch.randn(40, 48).bfloat16(), torch.randn(48, 56).bfloat16(), torch.randn(40, 56).bfloat16(),"
        "torch.randn(34, 47).half(), torch.randn(47, 39).half()",
    ),
    "layers": make_task(
        "F.gelu(self.l(a)) + a, self.l(a).softmax(-1)", "torch.randn(2, 21, 52)", "self.l = nn.Linear(52, 52)"
    ),
}
CONVOLUTION = make_task(
    "F.relu(self.c(a))", "torch.randn(2, 5, 9, 10)", "self.c = nn.Conv2d(5, 17, 3, padding=1, stride=2)"
)
_SMALL_TILES = StageDesign(tile_m=32, tile_n=32, tile_k=16, threads=64)
MATMUL_DESIGNS = {
    "multiply-add": replace(_SMALL_TILES, pipeline_stages=2),
    "tensor cores": replace(_SMALL_TILES, order="tiles"),
    "split-K": StageDesign(
        order="tiles", tile_m=64, tile_n=32, tile_k=16, threads=128, pipeline_stages=4, split=3
    ),
}


_RARER = (
    ("odd sizes", "multiply-add"),
    ("halves", "multiply-add"),
    ("layers", "multiply-add"),
    ("layers", "split-K"),
)
"""Left to `make test-long`."""
_PAIRS = [(name, design_name) for name in MATMULS for design_name in MATMUL_DESIGNS]


@pytest.mark.parametrize(
    ("name", "design_name"),
    [pytest.param(*pair, marks=pytest.mark.long) if pair in _RARER else pair for pair in _PAIRS],
)
def test_matrix_products_are_correct(
    name: str, design_name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = FencedChecker(MATMULS[name], tmp_path)
    tf32 = name == "layers" and design_name != "multiply-add"
    assert_correct(
        checker,
        all_stages(checker, MATMUL_DESIGNS[design_name]),
        monkeypatch,
        _MAX_ERROR_TF32 if tf32 else _MAX_ERROR,
    )


WARPGROUP_MATMULS: dict[str, Task] = {
    "sizes that are no multiples": make_task(
        "F.gelu(a @ b.t() + c) + d",
        ", ".join(
            [exact_in_tf32(140, 100), exact_in_tf32(72, 100), exact_in_tf32(72), exact_in_tf32(140, 72)]
        ),
    ),
    "batches": make_task(
        "torch.bmm(a, b.transpose(1, 2)), torch.bmm(a, b.transpose(1, 2)).sum(-1)",
        f"{exact_in_tf32(3, 66, 36)}, {exact_in_tf32(3, 80, 36)}",
    ),
    "halves": make_task(
        "(a @ b.t()).relu(), c @ d.t()",
        "torch.randn(66, 136).bfloat16(), torch.randn(80, 136).bfloat16(),"
        "torch.randn(66, 72).half(), torch.randn(64, 72).half()",
    ),
}
_WARPGROUPS = StageDesign(order="tiles", tile_m=128, tile_n=64, pipeline_stages=2, wgmma=True)


@pytest.mark.parametrize("name", WARPGROUP_MATMULS)
def test_products_of_warpgroups_are_correct(
    name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = FencedChecker(WARPGROUP_MATMULS[name], tmp_path)
    design = all_stages(checker, _WARPGROUPS)
    assert "wgmma_" in BACKEND.write(checker.program, design).split("__global__")[1]
    assert_correct(checker, design, monkeypatch)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("k_tile / PIPELINE_STAGES % 2 ^ 1", "k_tile / PIPELINE_STAGES % 2"),
        ("empty + (k_tile - 1) % PIPELINE_STAGES", "empty + k_tile % PIPELINE_STAGES"),
        ("wgmma_wait<1>()", "wgmma_wait<2>()"),
        ("wgmma_wait<0>()", "wgmma_wait<1>()"),
        ("left + 2 * k, right", "left, right"),
    ],
)
def test_defects_of_warpgroup_products_are_detected(
    right: str, wrong: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock, the wrong buffer released, buffers released too early, results read too early, one k only."""
    task = make_task("a @ b.t()", f"{exact_in_tf32(70, 160)}, {exact_in_tf32(64, 160)}")
    checker = FencedChecker(task, tmp_path)
    source = BACKEND.write(checker.program, all_stages(checker, _WARPGROUPS))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(checker.source_errors(source.replace(right, wrong))) <= _MAX_ERROR


def test_only_operands_contiguous_along_the_sum_are_multiplied_by_warpgroups() -> None:
    for expression, shapes, expected in (
        ("a @ b.t()", ("256, 64", "128, 64"), True),
        ("a @ b", ("256, 64", "64, 128"), False),
        ("a @ b.t()", ("256, 66", "128, 66"), False),  # rows of 264 bytes are not aligned to 16
        ("(a + 1) @ b.t()", ("256, 64", "128, 64"), False),
    ):
        program = program_of(make_task(expression, ", ".join(f"torch.randn({shape})" for shape in shapes)))
        uses = any(stage.wgmma for stage in BACKEND.seeds(program)[0].design.stages)
        assert uses == expected, expression


@pytest.mark.parametrize("precision", ["tf32", pytest.param("fp32", marks=pytest.mark.long)])
def test_convolutions_become_matrix_products(
    precision: Any, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = FencedChecker(CONVOLUTION, tmp_path)
    assert checker.designs()[0].stages[0].order == "tiles"
    design = replace(all_stages(checker, MATMUL_DESIGNS["tensor cores"]), precision=precision)
    assert ("mma<TF32>" in BACKEND.write(checker.program, design)) == (precision == "tf32")
    assert_correct(checker, design, monkeypatch, _MAX_ERROR_TF32 if precision == "tf32" else _MAX_ERROR)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("async_wait<PIPELINE_STAGES - 2>();", "async_wait<PIPELINE_STAGES - 1>();"),
        *(
            pytest.param(*pair, marks=pytest.mark.long)
            for pair in (
                ("__syncthreads();\n        const int next", "const int next"),
                ("next % PIPELINE_STAGES);", "(next + 1) % PIPELINE_STAGES);"),
                ("left_k < 10 &&", ""),
                ("b[n / 2][n % 2 + 2]", "b[n / 2][n % 2]"),
            )
        ),
    ],
)
def test_defects_of_matrix_products_are_detected(
    right: str, wrong: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy without a wait, a missing barrier, the wrong buffer, a missing bounds check, half of the terms."""
    checker = FencedChecker(make_task("a @ b", f"{exact_in_tf32(44, 40)}, {exact_in_tf32(40, 52)}"), tmp_path)
    source = BACKEND.write(checker.program, all_stages(checker, MATMUL_DESIGNS["tensor cores"]))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(checker.source_errors(source.replace(right, wrong))) <= _MAX_ERROR


def test_mish_is_one_exponential_and_one_quotient(
    tmp_path: Path, on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = "torch.cat([torch.randn(60) * 4, torch.linspace(-100, 100, 200), torch.tensor([math.nan])])"
    task = make_task("return F.mish(a), a * torch.tanh(F.softplus(a)), F.softplus(a)", values)
    program = programs_of(operator_graph_of(task), "cuda")["own"]
    checker = KernelChecker(task, tmp_path, BACKEND, program=program)
    source = BACKEND.write(program, checker.designs()[0])
    assert "tanhf(" not in source and source.count("expf(") == source.count("log1pf(") == 1
    with guarded(monkeypatch):
        assert max(checker.source_errors(source)) <= 2


def test_design_sets_the_precision_of_matrix_products() -> None:
    program = program_of(make_task("a @ b", "torch.randn(64, 64), torch.randn(64, 64)"))
    designs = [seed.design for seed in BACKEND.seeds(program)]
    assert len(designs) > 1 and "mma<TF32>" in BACKEND.write(program, designs[0])
    for design in designs:
        assert "mma<" not in BACKEND.write(program, replace(design, precision="fp32")).split("__global__")[1]


def test_matrix_products_of_integers_are_rejected() -> None:
    program = program_of(make_task("a @ b", "torch.randint(0, 9, (32, 32)), torch.randint(0, 9, (32, 32))"))
    with pytest.raises(NoProposal, match="matrix product of int64"):
        BACKEND.write(program, BACKEND.seeds(program)[0].design)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*MATMULS, "convolution"])
def test_matrix_products_are_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(MATMULS.get(name, CONVOLUTION), tmp_path, BACKEND, "cuda")
    for design in (
        *checker.designs(),
        *(all_stages(checker, stage_design) for stage_design in MATMUL_DESIGNS.values()),
    ):
        limit = (
            _MAX_ERROR_16_BIT
            if name == "halves"
            else _MAX_ERROR_TF32
            if name in ("layers", "convolution")
            else _MAX_ERROR
        )
        assert max(checker.errors(design)) <= limit, design.to_comment()


@pytest.mark.gpu
@pytest.mark.parametrize("name", WARPGROUP_MATMULS)
def test_products_of_warpgroups_are_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(WARPGROUP_MATMULS[name], tmp_path, BACKEND, "cuda")
    limit = _MAX_ERROR_16_BIT if name == "halves" else _MAX_ERROR
    for tile_n, pipeline_stages in ((64, 2), (128, 4)):
        design = all_stages(checker, replace(_WARPGROUPS, tile_n=tile_n, pipeline_stages=pipeline_stages))
        assert max(checker.errors(design)) <= limit, design.to_comment()


@pytest.mark.gpu
@pytest.mark.parametrize("name", WINDOWS)
def test_overlapping_windows_are_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = KernelChecker(WINDOWS[name][0], tmp_path, BACKEND, "cuda")
    for coarsening in (8, 3):
        design = overlapped(checker, coarsening)
        assert max(checker.errors(design)) <= (_MAX_ERROR_16_BIT if name == "convolutions" else _MAX_ERROR), (
            design.to_comment()
        )


@pytest.mark.gpu
@pytest.mark.parametrize("math_mode", MATH_TASKS)
def test_fast_math_is_within_tolerance_on_a_gpu(math_mode: Any, tmp_path: Path) -> None:
    checker = KernelChecker(math_task(math_mode), tmp_path, BACKEND, "cuda")
    excesses = checker.excesses(BACKEND.write(checker.program, replace(checker.designs()[0], math=math_mode)))
    assert max(excesses.values()) <= 1, excesses


# --- properties of all kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("scratch[warp] = value;\n        __syncthreads();", "scratch[warp] = value;"),
        ("in_a + 1200 * row + 4 * pack", "in_a + 1200 * row + 4 * pack + 4"),
        (
            "store_vector(out0 + 1200 * row + 4 * pack",
            "store_vector(out0 + 1200 * row + 4 * pack + (row == 10 ? 4 : 0)",
        ),
        (
            "if (lane == 0) scratch[warp] = value;\n        __syncthreads();",
            "if (lane == 0) { scratch[warp] = value; __syncthreads(); }",
        ),
        ("300 % STRIDE == 0", "true"),
    ],
)
def test_defects_of_row_kernels_are_detected(
    right: str, wrong: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing barrier, a wrong index, a store outside the tensor, a divergent barrier, a missing bounds check."""
    checker = FencedChecker(TASKS["softmax"], tmp_path)
    source = BACKEND.write(checker.program, all_stages(checker, ROW_DESIGNS["a block per row"]))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(checker.source_errors(source.replace(right, wrong))) <= _MAX_ERROR


def test_misaligned_inputs_are_rejected(on_cpu: Any, tmp_path: Path) -> None:
    source = BACKEND.write(
        program_of(make_task("a * 2", "torch.randn(64)")), Design("cuda", (StageDesign(vector_width=4),))
    )
    names: dict[str, Any] = {}
    exec(source, names)
    values = torch.randn(65)
    assert torch.equal(names["ModelNew"]()(values[:64]), values[:64] * 2)
    with pytest.raises(LaunchError, match="716"):
        names["ModelNew"]()(values[1:])


def test_designs_round_trip_and_every_move_applies() -> None:
    applied = set()
    long_sums = make_task("F.gelu(a @ b)", "torch.randn(256, 4096), torch.randn(4096, 256)")
    for task in (
        *TASKS.values(),
        TRANSPOSED,
        FAMILIES["pooling"],
        LARGE_POOL,
        MATMULS["layers"],
        long_sums,
    ):
        program = program_of(task)
        starts = [seed.design for seed in BACKEND.seeds(program)]
        if not any(stage.product for stage in program.stages):
            starts.append(Design("cuda", (ROW_DESIGNS["split rows"],) * len(program.stages)))
        for start in starts:
            assert parse_design(BACKEND.write(program, start)) == start
            for move in MOVES:
                if (moved := move.apply(program, start)) is not None:
                    assert moved != start and parse_design(BACKEND.write(program, moved)) == moved
                    applied.add(move.name)
    moves = {move.name for move in MOVES}
    assert applied == moves - {"halo in shared memory"}, "test_playbook_halo.py has that one"


@pytest.mark.parametrize(
    ("forward", "offered"),
    [
        ("F.gelu(a)", {"approximate"}),
        ("a.tanh()", {"fast"}),
        ("a.erf()", set()),
        ("F.silu(a)", {"fast"}),
        ("5 * (a / 5).tanh() + a.exp()", {"approximate", "fast"}),
    ],
)
def test_math_moves_apply_where_they_help(forward: str, offered: set[str]) -> None:
    """Approximations are not offered for results themselves, which would have few digits near zero."""
    program = program_of(make_task(forward))
    design = BACKEND.seeds(program)[0].design
    moved = [new for move in MOVES if (new := move.apply(program, design)) and new.math != "library"]
    assert {new.math for new in moved} == offered
    for new in moved:
        back = BACKEND.fallbacks(program, new)[0]
        assert back == replace(new, math={"approximate": "fast", "fast": "library"}[new.math]), (
            "a step back after a wrong result"
        )


def test_moves_name_existing_diagnostics() -> None:
    assert {name for move in MOVES for name in move.diagnostics} <= registry().keys()


# --- compiled for Hopper -----------------------------------------------------------------------------------

LARGE = {
    "gelu": ("F.gelu(a)", "torch.empty(2048, 4096)"),
    "bfloat16": (
        "a * 2 + b",
        "torch.empty(2048, 4096, dtype=torch.bfloat16), torch.empty(2048, 4096, dtype=torch.bfloat16)",
    ),
    "softmax": ("a.softmax(-1)", "torch.empty(2048, 8192)"),
    "column sums": ("a.sum(0)", "torch.empty(4096, 4096)"),
}


@pytest.mark.skipif(nvcc() is None or sass.find_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in ("gelu", "bfloat16", "column sums")))
        for name in LARGE
    ],
)
def test_machine_code_has_16_byte_accesses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    program = program_of(make_task(*LARGE[name]))
    source = BACKEND.write(program, BACKEND.seeds(program)[0].design)
    exec(source, {})
    static = sass.analyze(
        {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}, source
    )
    facts = next(
        variants[0] for kernel, variants in static.kernels.items() if kernel in ("stage0", "stage0_0")
    )
    assert set(facts.widths["global_load"]) == {"128"}
    assert name == "column sums" or set(facts.widths["global_store"]) == {"128"}
    assert facts.spill_stores == facts.spill_loads == 0 and facts.registers <= 64
    assert not facts.warnings and not static.warnings


@pytest.mark.long  # Triton's is in test_playbook_triton.py
@pytest.mark.skipif(nvcc() is None or sass.find_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
def test_approximate_math_takes_fewer_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    program = program_of(make_task(*LARGE["gelu"]))
    counts = {}
    for math_mode in ("library", "approximate"):
        folder = tmp_path / math_mode
        monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(folder))
        source = BACKEND.write(program, replace(BACKEND.seeds(program)[0].design, math=math_mode))  # type: ignore[arg-type]
        exec(source, {})
        (facts,) = sass.analyze({file.name: file.read_bytes() for file in folder.iterdir()}, source).kernels[
            "stage0"
        ]
        counts[math_mode] = sum(facts.mix.values())
    assert counts["approximate"] < 0.7 * counts["library"]


@pytest.mark.long
@pytest.mark.skipif(nvcc() is None or sass.find_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrix_products_use_tensor_cores_and_async_copies(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    shapes = ("2048, 1024", "1024, 4096", "2048, 4096")
    program = program_of(
        make_task(
            "F.gelu(a @ b) + c", ", ".join(f"torch.empty({shape}, dtype=torch.{dtype})" for shape in shapes)
        )
    )
    source = BACKEND.write(program, BACKEND.seeds(program)[0].design)
    exec(source, {})
    static = sass.analyze(
        {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}, source
    )
    facts = static.kernels["product0"][0]
    assert facts.mix["hmma"] > 0 and set(facts.widths["async_copy"]) == {"128"}
    assert facts.spill_stores == facts.spill_loads == 0
    assert not facts.warnings and not static.warnings
