"""Compiler seeds: what torch.compile makes of a task is an ordinary candidate, and the judge says so."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quick_judge import QuickJudge
from ramp import Ramp
from torch import nn

from kernelpro import api
from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.judge import tripwires
from kernelpro.lab.languages import detect, own_kernels
from kernelpro.lab.seeds.capture import CapturedGraph, NoSeed, _chosen_configs
from kernelpro.lab.seeds.compose import compose_candidate
from kernelpro.lab.seeds.unwrap import split_module
from kernelpro.records import Candidate, Job, Options, ProbeData, Status, StudyData, Target, Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"
BLOCK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.GELU())
        self.scale = torch.rand(64)

    def forward(self, x):
        y = self.layers(self.norm(x)) * self.scale
        return y, {"largest": [y.amax(-1)]}

def get_inputs():
    return [torch.randn(32, 128)]

def get_init_inputs():
    return [128]
"""
BREAK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        print("on the way")
        return y + 1

def get_inputs():
    return [torch.randn(8, 8)]
"""
OPTIONS = Options(effort="quick", baselines=("eager_fp32",))
COMPILED = Options(effort="quick", baselines=("eager_fp32", "compile"))


def study(
    worker: JobRunner, task: Task, seeds: tuple[str, ...] = ("compile",), target: Target = "cpu"
) -> StudyData:
    result = worker.run(Job("study", "study", task, target=target, options=OPTIONS, seed_baselines=seeds))
    assert isinstance(result.data, StudyData), result.error
    return result.data


@pytest.fixture(scope="module")
def block_study(worker: JobRunner) -> StudyData:
    """Studied before any baseline was compiled."""
    return study(worker, Task(BLOCK, "block"), ("compile", "eager_fp32"))


def test_a_block_with_parameters_becomes_a_candidate_that_the_judge_passes(
    block_study: StudyData, quick_judge: QuickJudge
) -> None:
    task, found = Task(BLOCK, "block"), block_study
    assert found.seed_errors == "" and [seed.name for seed in found.seeds] == [
        "torch.compile",
        "PyTorch",
    ]
    compiled, eager = (seed.source for seed in found.seeds)
    assert compiled.startswith("# Written by torch.compile") and "# library-calls: addmm" in compiled
    assert 'extern "C" void cpp_fused' in compiled and "get_inputs" not in compiled
    assert "self.layers[0].weight" in compiled and "self.scale" in compiled and detect(compiled).name == "cpp"
    verdict = quick_judge.judge(task, Candidate(compiled), build_timeout=300.0)
    assert verdict.status is Status.PASSED and verdict.parameters == "by name", verdict.reason
    assert verdict.own_share and verdict.own_share > 0.01
    assert quick_judge.judge(task, Candidate(eager), build_timeout=300.0).own_share == 0.0


def _seed_of_a_package(worker: JobRunner) -> tuple[Task, str]:
    made = nn.Sequential(nn.Linear(48, 64), nn.Sequential(nn.GELU(), nn.BatchNorm1d(64))).eval()
    task = api.load_task(made, [torch.randn(96, 48)])
    assert "from torch.nn.modules.container import Sequential" in task.source
    assert "# Sequential(\n#   (0): Linear(in_features=48" in task.source
    found = study(worker, task, ("compile", "eager_fp32"))
    assert "PyTorch: the class, constructed with `init_inputs`" in found.seed_errors
    (seed,) = found.seeds
    return task, seed.source


def test_a_module_of_a_package_has_its_weights_by_name_alone(worker: JobRunner) -> None:
    """Nobody has said how it is constructed, and its file cannot stand alone."""
    _, source = _seed_of_a_package(worker)
    assert "getattr(getattr(self, '1'), '1').running_mean" in source and "BatchNorm" not in source


@pytest.mark.long  # two other seeds are compiled once more and judged
def test_the_seed_of_a_module_of_a_package_passes(worker: JobRunner, quick_judge: QuickJudge) -> None:
    task, source = _seed_of_a_package(worker)
    verdict = quick_judge.judge(task, Candidate(source), build_timeout=300.0)
    assert verdict.status is Status.PASSED and verdict.parameters == "by name", verdict.reason


@pytest.mark.parametrize("buffer", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_has_no_name_comes_with_the_class_where_that_is_constructed_alike(
    buffer: bool, worker: JobRunner, quick_judge: QuickJudge
) -> None:
    task = api.load_task(Ramp(32, buffer), [torch.randn(96, 32)], init_inputs=[32, buffer])
    (seed,) = study(worker, task).seeds
    assert "class ModelNew(Ramp)" in seed.source
    assert quick_judge.judge(task, Candidate(seed.source), build_timeout=300.0).status is Status.PASSED
    found = study(worker, api.load_task(Ramp(32, buffer), [torch.randn(96, 32)], init_inputs=[]))
    assert not found.seeds and "neither an input nor part of the module" in found.seed_errors


def test_a_module_as_it_is_needs_what_it_was_constructed_with(
    worker: JobRunner, quick_judge: QuickJudge
) -> None:
    task = api.load_task(nn.Linear(48, 64), [torch.randn(96, 48)], init_inputs=[48, 64])
    (seed,) = study(worker, task, ("eager_fp32",)).seeds
    assert quick_judge.judge(task, Candidate(seed.source)).status is Status.PASSED


def test_where_there_is_no_seed_the_reason_is_told(worker: JobRunner) -> None:
    found = study(worker, Task(BREAK, "odd"))
    assert found.seeds == () and "torch.compile: " in found.seed_errors and "`print`" in found.seed_errors


def test_what_was_written_for_the_baselines_is_not_asked_for_again(
    worker: JobRunner, block_study: StudyData, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, asked = Task(BLOCK, "block"), ("compile", "eager_fp32")
    worker.release_task()
    monkeypatch.setattr(
        "kernelpro.lab.study._capture_in_child",
        lambda bench, variants: pytest.fail(f"a child was asked for {variants}"),
    )
    probed = worker.run(Job("probe", "probe", task, target="cpu", options=COMPILED))
    assert isinstance(probed.data, ProbeData) and "compile" in probed.data.baselines, probed.error
    assert (
        worker.run(Job("study", "study", task, target="cpu", options=COMPILED, seed_baselines=asked)).data
        == block_study
    )


def rehearsed(worker: JobRunner, task: Task) -> StudyData:
    """Studied after its baselines were compiled."""
    probed = worker.run(Job("probe", "probe", task, target="cpu", options=COMPILED))
    assert isinstance(probed.data, ProbeData) and "compile" in probed.data.baselines, (
        "whatever becomes of the seed"
    )
    found = worker.run(
        Job("study", "study", task, target="cpu", options=COMPILED, seed_baselines=("compile",))
    ).data
    assert isinstance(found, StudyData)
    return found


BRANCH = BREAK.replace('print("on the way")\n        return y + 1', "return y if y.sum() > 0 else y + 1")
HELD = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.held = HELD

    def forward(self, x):
        USE
        return x * 2 + 1

def get_inputs():
    return [torch.randn(8, 8)]
"""
SPARSE = HELD.replace("HELD", "torch.eye(8).to_sparse()").replace("USE", "pass")
CACHED = HELD.replace("HELD", "None").replace(
    "USE", "self.held = torch.ones(8, 8).tril() if self.held is None else self.held"
)


@pytest.mark.parametrize(
    ("source", "reason"), [(BREAK, "`print`"), pytest.param(BRANCH, "ranch", marks=pytest.mark.long)]
)
def test_a_baseline_in_several_graphs_leaves_the_reason_to_who_asks(
    source: str, reason: str, worker: JobRunner
) -> None:
    found = rehearsed(worker, Task(source, "odd"))
    assert found.seeds == () and reason in found.seed_errors


@pytest.mark.long  # the test before has a baseline without a seed as well
def test_a_seed_that_cannot_be_written_down_costs_no_baseline(worker: JobRunner) -> None:
    rehearsed(worker, Task(SPARSE, "sparse"))


def test_what_the_first_call_leaves_in_the_model_is_not_taken_for_a_parameter(worker: JobRunner) -> None:
    found = rehearsed(worker, Task(CACHED.replace("x * 2 + 1", "x * self.held"), "cached"))
    (seed,) = found.seeds or pytest.fail(found.seed_errors)
    assert "self.held" not in seed.source


def test_without_a_wish_for_seeds_no_compiler_runs(worker: JobRunner) -> None:
    found = study(worker, Task(BREAK.replace('print("on the way")', "y = y * y"), "plain"), ())
    assert found.seeds == () and found.seed_errors == "" and found.graph and found.graph.nodes


# --- the compiler's module, without a compiler -----------------------------------------------------------

TRITON = '''
from ctypes import c_void_p
import torch
from math import inf, nan
from torch._inductor.async_compile import AsyncCompile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream

aten = torch.ops.aten
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
async_compile = AsyncCompile()

triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import AutotuneHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 1024},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90), 'constants': {}},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'triton_poi_fused_add_0', 'mutated_arg_names': []},
)
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex, xmask) + 1.0, xmask)
""", device_str='cuda')

async_compile.wait(globals())
del async_compile

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, = args
        args.clear()
        assert_size_stride(arg0_1, (1024, ), (1, ))
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((1024, ), (1, ), torch.float32)
            # Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(arg0_1, buf0, 1024, stream=stream0)
            del arg0_1
        return (buf0, )

runner = Runner(partitions=[])
call = runner.call
'''


def test_triton_kernels_are_functions_of_the_candidate_with_their_decorators() -> None:
    captured = CapturedGraph(TRITON, ("x",), ("x",), "outputs[0]")
    source = compose_candidate(captured, Task(BREAK, "break"), "compile", "cuda")
    functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert functions == ["triton_poi_fused_add_0", "compiled_call"]
    assert "# Topologically Sorted" in source and "async_compile" not in source and "c_void_p" not in source
    assert detect(source).name == "triton" and own_kernels(source) == {"triton_poi_fused_add_0"}
    assert "class ModelNew(torch.nn.Module)" in source and "on the way" not in source, (
        "nothing of the reference is needed"
    )
    assert tripwires.check(source) is None, "no wire is touched, and none has to be switched off"


def test_a_kernel_keeps_the_configuration_that_the_compiler_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codecache import PyCodeCache  # seconds; not for every process that collects tests

    pytest.importorskip("triton")

    def kernel(captured: CapturedGraph) -> Any:
        """As the candidate has it, without what only torch for GPUs has; no GPU is needed before it is called."""
        place = tmp_path / f"settled_{bool(captured.kernel_configs)}.py"
        lines = compose_candidate(captured, Task(BREAK, "break"), "compile", "cuda").splitlines()
        place.write_text(
            "\n".join(line for line in lines if not re.search(r"_cuda\b|_cuda_|set_driver_to_gpu", line))
        )
        found = importlib.util.spec_from_file_location(place.stem, place)
        assert found and found.loader
        found.loader.exec_module(module := importlib.util.module_from_spec(found))
        return module.triton_poi_fused_add_0

    tuned = kernel(CapturedGraph(TRITON, ("x",), ("x",), "outputs[0]"))
    assert len(tuned.configs) > 1
    chosen = tuned.configs[-1]
    tuned.launchers = [SimpleNamespace(config=chosen)]  # what is left of them after a first call
    compiled = SimpleNamespace(key="some", triton_poi_fused_add_0=tuned)
    monkeypatch.setattr(
        PyCodeCache, "modules", [SimpleNamespace(key="other", triton_poi_fused_add_0=None), compiled]
    )
    settings = _chosen_configs(SimpleNamespace(cache_key="some"))
    chosen_by = CapturedGraph(TRITON, ("x",), ("x",), "outputs[0]", kernel_configs=settings)
    assert tripwires.check(compose_candidate(chosen_by, Task(BREAK, "break"), "compile", "cuda")) is None
    settled = kernel(chosen_by)
    assert [str(config) for config in settled.configs] == [str(chosen)]


def test_functions_that_help_two_kernels_under_one_name_do_not_meet() -> None:
    """Scans combine by a function of their own, which the compiler calls the same in each kernel."""
    start = TRITON.index("triton_poi_fused_add_0 = async_compile")
    first = TRITON[start : TRITON.index("async_compile.wait")]
    first = first.replace(
        "@triton_heuristics",
        "@triton.jit\ndef _triton_helper_fn_add0(a, b):\n    return a + b\n\n@triton_heuristics",
    )
    first = first.replace(
        "tl.load(in_ptr0 + xindex, xmask) + 1.0",
        "_triton_helper_fn_add0(tl.load(in_ptr0 + xindex, xmask), 1.0)",
    )
    second = first.replace("triton_poi_fused_add_0", "triton_poi_fused_sub_1").replace(
        "return a + b", "return a - b"
    )
    code = TRITON[:start] + first + second + TRITON[TRITON.index("async_compile.wait") :]
    code = code.replace(
        "            del arg0_1\n",
        "            triton_poi_fused_sub_1.run(buf0, buf0, 1024, stream=stream0)\n            del arg0_1\n",
    )
    source = compose_candidate(
        CapturedGraph(code, ("x",), ("x",), "outputs[0]"), Task(BREAK, "break"), "compile", "cuda"
    )
    functions = {
        node.name: ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    assert "a + b" in functions["triton_poi_fused_add_0_triton_helper_fn_add0"]
    assert "a - b" in functions["triton_poi_fused_sub_1_triton_helper_fn_add0"]
    assert "triton_poi_fused_sub_1_triton_helper_fn_add0(tl.load" in functions["triton_poi_fused_sub_1"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("async_compile.triton(", "async_compile.cutlass(", "an unsupported kind"),
        ("triton_poi_fused_add_0.run(", "self.partitions[0](", "uses self"),
        ("buf0 = empty_strided_cuda", "buf0 = somewhere_else", "uses somewhere_else"),
        ("            del arg0_1\n", "            aten.bernoulli_(buf0)\n", "random numbers"),
    ],
)
def test_what_is_not_known_is_no_seed_rather_than_a_wrong_one(old: str, new: str, reason: str) -> None:
    with pytest.raises(NoSeed, match=reason):
        split_module(TRITON.replace(old, new), ())


@pytest.mark.gpu
def test_on_the_gpu_the_seed_is_triton_and_passes(worker: JobRunner, quick_judge: QuickJudge) -> None:
    task = Task(BLOCK, "block")
    (seed,) = study(worker, task, target="cuda").seeds
    assert detect(seed.source).name == "triton"
    assert "triton_heuristics.fixed_config(" in seed.source, "nothing is tuned when it is first called"
    verdict = quick_judge.judge(task, Candidate(seed.source), target="cuda", build_timeout=300.0)
    assert verdict.status is Status.PASSED and verdict.parameters == "by name", verdict.reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gelu_bias", "swiglu"])
def test_the_compilers_own_kernels_are_no_faster_than_it(
    name: str, worker: JobRunner, quick_judge: QuickJudge
) -> None:
    """They are launched more quickly, by plain code: nothing that its user would notice."""
    task = Task.from_file(EXAMPLES / name / "task.py")
    (seed,) = study(worker, task, target="cuda").seeds
    verdict = quick_judge.judge(
        task, Candidate(seed.source), "cuda", effort="normal", baselines=("compile",), build_timeout=300.0
    )
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.speedup["compile"].low < 1.03 and verdict.speedup["compile"].high > 0.97, (
        verdict.measurement
    )
