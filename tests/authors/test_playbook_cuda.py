"""The playbook's CUDA: kernels run on the CPU and are held against the reference; nvcc compiles some for a Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_on_cpu import compiler, fenced, guarded
from playing import QUICK, Trial, program, quick, task
from test_playbook_families import FAMILIES

from kernelpro import runtime
from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.cuda.moves import MOVES
from kernelpro.authors.playbook.cuda.sliding_windows import find_overlap
from kernelpro.authors.playbook.cuda.backend import BACKEND
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, parse_design
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.languages.native import LaunchError
from kernelpro.lab.profile import sass
from kernelpro.records import Task

_MOST = 20.0
"""Times the reference's own error against float64."""
_MOST_OF_HALVES = 40000.0
"""Where results are rounded to halves: what is wrong is wrong by more."""
_MOST_OF_TF32 = 8000.0
"""Where operands are rounded to 11 bits."""

WAYS = {
    "a block a row": StageDesign(threads=128, vector_width=4, cache_row=True),
    "warps": StageDesign(threads=128, coarsening=8, vector_width=2),
    "rows in shared memory": StageDesign(threads=64, coarsening=4, vector_width=4, cache_row=True),
    "strips": StageDesign(order="strips", threads=64, lanes=4, vector_width=2, cache_row=True),
    "strips in shared memory": StageDesign(order="strips", threads=64, vector_width=2, cache_row=True),
    "shared rows": StageDesign(threads=64, vector_width=4, split=3),
    "shared strips": StageDesign(order="strips", threads=64, lanes=2, vector_width=2, split=3),
}
TASKS: dict[str, Task] = {
    "softmax": task("F.softmax(a * 2, -1)", "torch.randn(11, 1200)"),
    "down the middle": task("return a.softmax(1), a.var(1), a.argmax(1)", "torch.randn(3, 70, 36)"),
    "running": task(
        "return a.cumsum(1), (a + 1).cumprod(0), b.flip(1).cumsum(1) - b",
        "torch.rand(9, 30), torch.randint(0, 9, (3, 1100))",
    ),
    "masked": task(
        "p = torch.arange(72); a = a.masked_fill(p[None] > p[:, None] + 3, -math.inf); return a.softmax(-1), a.exp().sum(1),"
        "torch.where(p[:, None] < 50, b, 0.0).sum(1), torch.where(p >= 7, b, 1.0).cumsum(-1)",
        "torch.randn(3, 72, 72), torch.randn(3, 72, 72)",
    ),
    "totals": task(
        "return F.mse_loss(a, b), (a * b).sum(-1).amax()", "torch.randn(300, 12), torch.randn(300, 12)"
    ),
}
HALVES = task(
    "F.gelu(a) * b, a.softmax(-1), a.mean(0)", "torch.randn(6, 264).half(), torch.randn(6, 264).half()"
)
TRANSPOSED = task(
    "return a.t() + b * a.t().exp(), c.permute(2, 0, 1) * 2",
    "torch.randn(70, 45), torch.randn(45, 70), torch.randn(33, 5, 40)",
)


class Fenced(Trial):
    """A trial in CUDA, with inputs beside which nobody may read."""

    def __init__(self, given: Task, folder: Path):
        super().__init__(given, folder, BACKEND)
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


def held(trial: Trial, design: Design, monkeypatch: pytest.MonkeyPatch, most: float = _MOST) -> None:
    with guarded(monkeypatch):
        errors = trial.errors(design)
    halves = any(t.dtype in ("bfloat16", "float16") for t in trial.program.tensors)
    assert max(errors) <= (_MOST_OF_HALVES if halves else most), (errors, design.to_comment())


@pytest.mark.parametrize("name", FAMILIES)
def test_first_designs_are_right(
    name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Fenced(FAMILIES[name], tmp_path)
    products = any(stage.product for stage in trial.program.stages)
    held(trial, trial.designs()[0], monkeypatch, _MOST_OF_TF32 if products else _MOST)


def ways() -> Iterator[Any]:
    """All of one task, and two of each other; the rest are left to `make test-long`."""
    for name in TASKS:
        for way in WAYS:
            usual = name == "softmax" or way in ("strips", "shared rows")
            yield pytest.param(name, way, marks=() if usual else pytest.mark.long)


@pytest.mark.parametrize(("name", "way"), list(ways()))
def test_every_way_is_right(
    name: str, way: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Fenced(TASKS[name], tmp_path)
    held(trial, everywhere(trial, WAYS[way]), monkeypatch)


def test_halves_and_tiles_are_right(on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Fenced(HALVES, tmp_path)
    held(halves, everywhere(halves, StageDesign(threads=64, vector_width=8, cache_row=True)), monkeypatch)
    transposed = Fenced(TRANSPOSED, tmp_path)
    for side in (32, 64):
        held(
            transposed,
            everywhere(transposed, StageDesign(order="tiles", threads=128, tile=side)),
            monkeypatch,
        )


WINDOWS: dict[str, tuple[Task, int]] = {
    "convolutions": (
        task(
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
        task(
            "F.max_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 3, 1, 1), F.max_pool2d(-a.abs() - 5, (5, 2), 1), F.max_pool2d(a, 2)",
            "torch.randn(2, 3, 16, 10)",
        ),
        3,
    ),
    "minima": (
        task(
            "-F.max_pool2d(-a, (3, 1), 1, (1, 0)) * F.avg_pool2d(a, (3, 1), 1, (1, 0))",
            "torch.randn(2, 3, 15, 10)",
        ),
        2,
    ),
}
"""With how many of their stages have windows that overlap."""
LARGE_POOL = task("F.max_pool2d(a, 3, 2, 1)", "torch.randn(64, 64, 64, 64)")


@pytest.mark.parametrize("together", [8, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", WINDOWS)
def test_outputs_share_what_their_windows_read(
    name: str, together: int, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, overlapping = WINDOWS[name]
    trial = Fenced(given, tmp_path)
    design = overlapped(trial, together)
    assert BACKEND.write(trial.program, design).count("for (int input_row = 0;") == overlapping
    held(trial, design, monkeypatch)


def test_windows_that_overlap_are_what_a_design_begins_with() -> None:
    read = program(LARGE_POOL)
    first = BACKEND.seeds(read)[0].design
    assert first.stages[0].order == "tiles" and first.stages[0].coarsening == 8
    plain = StageDesign(order="strips")
    (overlap,) = (move for move in MOVES if move.name == "share windows")
    found = overlap.apply(read, Design("cuda", (plain,)))
    assert found and found.stages[0].coarsening == 8 and overlap.apply(read, first) is None


@pytest.mark.parametrize("math_mode", QUICK)
def test_quick_mathematics_is_inside_the_judges_limits(math_mode: Any, on_cpu: Any, tmp_path: Path) -> None:
    trial = Trial(quick(math_mode), tmp_path, BACKEND)
    excesses = trial.excesses(BACKEND.write(trial.program, replace(trial.designs()[0], math=math_mode)))
    assert set(excesses) >= {"as given", "x3", "x0.01", "negated"} and max(excesses.values()) <= 1, excesses


def overlapped(trial: Trial, together: int) -> Design:
    """So many outputs of a thread, wherever windows overlap."""
    how = StageDesign(order="tiles", threads=64)
    return Design(
        "cuda",
        tuple(replace(how, together=together) if find_overlap(stage) else how for stage in trial.program.stages),
    )


def everywhere(trial: Trial, how: StageDesign) -> Design:
    return Design("cuda", (how,) * len(trial.program.stages))


# --- products ----------------------------------------------------------------------------------------------


def whole(*shape: int) -> str:
    """Numbers that TF32 holds as they are: tensor cores make no error of their own."""
    return f"torch.randint(-8, 9, {shape}).float()"


PRODUCTS: dict[str, Task] = {
    "all ways round": task(
        "return a @ b, c.t() @ b * 2, a @ d.t(), F.relu(a * 2 - 1) @ d.t(), c.t() @ d.t() + 1, torch.bmm(e, e.transpose(1, 2)) + f",
        ", ".join([whole(44, 40), whole(40, 52), whole(40, 36), whole(48, 40), whole(3, 35, 24), whole(35)]),
    ),
    "odd sizes": task(
        "F.gelu(a @ b + c) + d, (a * 2) @ b",
        ", ".join([whole(33, 35), whole(35, 37), whole(37), whole(33, 37)]),
    ),
    "halves": task(
        "F.gelu(a @ b) + c, a.t() @ c.t()[:, :40].t().contiguous(), (d * 2) @ e, d @ d.t()",
        "torch.randn(40, 48).bfloat16(), torch.randn(48, 56).bfloat16(), torch.randn(40, 56).bfloat16(),"
        "torch.randn(34, 47).half(), torch.randn(47, 39).half()",
    ),
    "layers": task(
        "F.gelu(self.l(a)) + a, self.l(a).softmax(-1)", "torch.randn(2, 21, 52)", "self.l = nn.Linear(52, 52)"
    ),
}
CONVOLUTION = task(
    "F.relu(self.c(a))", "torch.randn(2, 5, 9, 10)", "self.c = nn.Conv2d(5, 17, 3, padding=1, stride=2)"
)
_SMALL_TILES = StageDesign(tile_m=32, tile_n=32, tile_k=16, threads=64)
PRODUCT_WAYS = {
    "multiply-add": replace(_SMALL_TILES, pipeline_stages=2),
    "tensor cores": replace(_SMALL_TILES, order="tiles"),
    "shared depth": StageDesign(order="tiles", tile_m=64, tile_n=32, tile_k=16, threads=128, pipeline_stages=4, split=3),
}


_RARER = (
    ("odd sizes", "multiply-add"),
    ("halves", "multiply-add"),
    ("layers", "multiply-add"),
    ("layers", "shared depth"),
)
"""Left to `make test-long`."""
_PAIRS = [(name, way) for name in PRODUCTS for way in PRODUCT_WAYS]


@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(*pair, marks=pytest.mark.long) if pair in _RARER else pair for pair in _PAIRS],
)
def test_products_are_right(
    name: str, way: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Fenced(PRODUCTS[name], tmp_path)
    tf32 = name == "layers" and way != "multiply-add"
    held(trial, everywhere(trial, PRODUCT_WAYS[way]), monkeypatch, _MOST_OF_TF32 if tf32 else _MOST)


@pytest.mark.parametrize("precision", ["tf32", pytest.param("fp32", marks=pytest.mark.long)])
def test_a_convolution_is_a_product_too(
    precision: Any, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Fenced(CONVOLUTION, tmp_path)
    assert trial.designs()[0].stages[0].order == "tiles"
    design = replace(everywhere(trial, PRODUCT_WAYS["tensor cores"]), precision=precision)
    assert ("mma<TF32>" in BACKEND.write(trial.program, design)) == (precision == "tf32")
    held(trial, design, monkeypatch, _MOST_OF_TF32 if precision == "tf32" else _MOST)


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
def test_what_is_wrong_with_a_product_is_detected(
    right: str, wrong: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy not waited for, a barrier missing, the wrong buffer, a bound forgotten, half of the terms."""
    trial = Fenced(task("a @ b", f"{whole(44, 40)}, {whole(40, 52)}"), tmp_path)
    source = BACKEND.write(trial.program, everywhere(trial, PRODUCT_WAYS["tensor cores"]))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(trial.errors_of(source.replace(right, wrong))) <= _MOST


def test_the_precision_of_products_is_that_of_the_design() -> None:
    read = program(task("a @ b", "torch.randn(64, 64), torch.randn(64, 64)"))
    designs = [seed.design for seed in BACKEND.seeds(read)]
    assert len(designs) > 1 and "mma<TF32>" in BACKEND.write(read, designs[0])
    for design in designs:
        assert "mma<" not in BACKEND.write(read, replace(design, precision="fp32")).split("__global__")[1]


def test_products_of_other_types_are_refused() -> None:
    read = program(task("a @ b", "torch.randint(0, 9, (32, 32)), torch.randint(0, 9, (32, 32))"))
    with pytest.raises(NoProposal, match="products of int64"):
        BACKEND.write(read, BACKEND.seeds(read)[0].design)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*PRODUCTS, "convolution"])
def test_every_product_is_right_on_a_gpu(name: str, tmp_path: Path) -> None:
    trial = Trial(PRODUCTS.get(name, CONVOLUTION), tmp_path, BACKEND, "cuda")
    for design in (*trial.designs(), *(everywhere(trial, how) for how in PRODUCT_WAYS.values())):
        limit = (
            _MOST_OF_HALVES
            if name == "halves"
            else _MOST_OF_TF32
            if name in ("layers", "convolution")
            else _MOST
        )
        assert max(trial.errors(design)) <= limit, design.to_comment()


@pytest.mark.gpu
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_right_on_a_gpu(name: str, tmp_path: Path) -> None:
    trial = Trial(WINDOWS[name][0], tmp_path, BACKEND, "cuda")
    for together in (8, 3):
        design = overlapped(trial, together)
        assert max(trial.errors(design)) <= (_MOST_OF_HALVES if name == "convolutions" else _MOST), (
            design.to_comment()
        )


@pytest.mark.gpu
@pytest.mark.parametrize("math_mode", QUICK)
def test_quick_mathematics_is_inside_the_judges_limits_on_a_gpu(math_mode: Any, tmp_path: Path) -> None:
    trial = Trial(quick(math_mode), tmp_path, BACKEND, "cuda")
    excesses = trial.excesses(BACKEND.write(trial.program, replace(trial.designs()[0], math=math_mode)))
    assert max(excesses.values()) <= 1, excesses


# --- what every kernel must be -----------------------------------------------------------------------------


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
def test_what_is_wrong_is_detected(
    right: str, wrong: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier missing, an index off by one, a store beside the tensor, a barrier for some, a bound forgotten."""
    trial = Fenced(TASKS["softmax"], tmp_path)
    source = BACKEND.write(trial.program, everywhere(trial, WAYS["a block a row"]))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(trial.errors_of(source.replace(right, wrong))) <= _MOST


def test_an_address_that_no_vector_can_have_is_refused(on_cpu: Any, tmp_path: Path) -> None:
    source = BACKEND.write(program(task("a * 2", "torch.randn(64)")), Design("cuda", (StageDesign(vector_width=4),)))
    names: dict[str, Any] = {}
    exec(source, names)
    given = torch.randn(65)
    assert torch.equal(names["ModelNew"]()(given[:64]), given[:64] * 2)
    with pytest.raises(LaunchError, match="716"):
        names["ModelNew"]()(given[1:])


def test_designs_come_back_from_their_candidates_and_moves_lead_on() -> None:
    made = set()
    long_sums = task("F.gelu(a @ b)", "torch.randn(256, 4096), torch.randn(4096, 256)")
    for given in (
        *TASKS.values(),
        TRANSPOSED,
        FAMILIES["pooling"],
        LARGE_POOL,
        PRODUCTS["layers"],
        long_sums,
    ):
        read = program(given)
        starts = [seed.design for seed in BACKEND.seeds(read)]
        if not any(stage.product for stage in read.stages):
            starts.append(Design("cuda", (WAYS["shared rows"],) * len(read.stages)))
        for start in starts:
            assert parse_design(BACKEND.write(read, start)) == start
            for move in MOVES:
                if (moved := move.apply(read, start)) is not None:
                    assert moved != start and parse_design(BACKEND.write(read, moved)) == moved
                    made.add(move.name)
    assert made == {move.name for move in MOVES}


@pytest.mark.parametrize(
    ("forward", "offered"),
    [
        ("F.gelu(a)", {"approximate"}),
        ("a.tanh()", set()),
        ("F.silu(a)", {"fast"}),
        ("5 * (a / 5).tanh() + a.exp()", {"approximate", "fast"}),
    ],
)
def test_mathematics_is_offered_where_it_helps(forward: str, offered: set[str]) -> None:
    """And cheap forms not where they are the result: near zero it would have no digits."""
    read = program(task(forward))
    design = BACKEND.seeds(read)[0].design
    made = [found for move in MOVES if (found := move.apply(read, design)) and found.math != "library"]
    assert {found.math for found in made} == offered
    for found in made:
        back = BACKEND.fallbacks(read, found)[0]
        assert back == replace(found, math={"approximate": "fast", "fast": "library"}[found.math]), (
            "a step back after a wrong result"
        )


def test_moves_answer_tools_that_there_are() -> None:
    assert {name for move in MOVES for name in move.diagnostics} <= registry().keys()


# --- for a Hopper, by nvcc ---------------------------------------------------------------------------------

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
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in ("gelu", "bfloat16"))) for name in LARGE]
)
def test_machine_code_moves_16_bytes_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    read = program(task(*LARGE[name]))
    source = BACKEND.write(read, BACKEND.seeds(read)[0].design)
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
def test_cheap_mathematics_takes_fewer_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    read = program(task(*LARGE["gelu"]))
    counts = {}
    for math_mode in ("library", "approximate"):
        folder = tmp_path / math_mode
        monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(folder))
        source = BACKEND.write(read, replace(BACKEND.seeds(read)[0].design, math=math_mode))  # type: ignore[arg-type]
        exec(source, {})
        (facts,) = sass.analyze({file.name: file.read_bytes() for file in folder.iterdir()}, source).kernels[
            "stage0"
        ]
        counts[math_mode] = sum(facts.mix.values())
    assert counts["approximate"] < 0.7 * counts["library"]


@pytest.mark.long
@pytest.mark.skipif(nvcc() is None or sass.find_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_are_made_on_tensor_cores_and_fetched_ahead(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", "90a")
    shapes = ("2048, 1024", "1024, 4096", "2048, 4096")
    read = program(
        task("F.gelu(a @ b) + c", ", ".join(f"torch.empty({shape}, dtype=torch.{dtype})" for shape in shapes))
    )
    source = BACKEND.write(read, BACKEND.seeds(read)[0].design)
    exec(source, {})
    static = sass.analyze(
        {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}, source
    )
    facts = static.kernels["product0"][0]
    assert facts.mix["hmma"] > 0 and set(facts.widths["async_copy"]) == {"128"}
    assert facts.spill_stores == facts.spill_loads == 0
    assert not facts.warnings and not static.warnings
