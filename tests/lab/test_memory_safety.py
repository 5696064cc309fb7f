"""Writes out of bounds make a candidate `wrong`, whichever buffer, side and distance; honest ones pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle, product

import pytest
from faulty_kernels import BUFFERS, REACHES, TASK, write_kernel
from quick_judge import QuickJudge

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.judge.judge import Judge
from kernelpro.lab.judge.memory_safety import GuardedCalls
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Candidate, Options, Status, Target, Task


class GuardedJudge:
    """A prepared judge that makes only the guarded calls."""

    def __init__(self, worker: JobRunner, target: Target):
        options = Options(baselines=(), build_timeout=300.0, call_timeout=20.0)
        self.bench = Bench(
            Task(TASK, "scale").for_target(target), target, options, worker._launcher, worker._builds
        )
        self.bench.open(lambda stage: None)
        self._judge = Judge(self.bench, lambda stage: None)
        self._judge.prepare(timed=False)
        self._builds = worker._builds

    def build(self, sources: Iterable[str]) -> None:
        """Start to build these candidates."""
        bench = self.bench
        for source in sources:
            self._builds.begin(Candidate(source, "faulty"), bench.target, bench.options, bench.task)

    def check(self, source: str) -> str:
        """What is wrong with a candidate, the note on it, or nothing."""
        calls = GuardedCalls(self.bench, self._judge._verification_inputs)
        try:
            return calls.check(Candidate(source, "faulty"), self._judge._check)
        except CandidateRejected as error:
            assert error.status is Status.WRONG, error.reason
            return error.reason
        finally:
            calls.close(Participant.close)

    def explain(self, source: str, crash: str) -> str:
        """The reason of a candidate's crash, explained by guarded calls."""
        calls = GuardedCalls(self.bench, self._judge._verification_inputs)
        error = CandidateRejected(Status.CRASHED, crash)
        try:
            return calls.explain(error, Candidate(source, "faulty"), self._judge._check).reason
        finally:
            calls.close(Participant.close)

    def close(self) -> None:
        self._judge.close()


@pytest.fixture(scope="module")
def cpu(worker: JobRunner) -> Iterator[GuardedJudge]:
    judge = GuardedJudge(worker, "cpu")
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def gpu(worker: JobRunner) -> Iterator[GuardedJudge]:
    judge = GuardedJudge(worker, "cuda")
    yield judge
    judge.close()


SIDES = ("before", "after")
ALL = tuple(product(BUFFERS, SIDES, REACHES))
EACH = tuple(
    (buffer, side, reach)
    for (buffer, side), reach in zip(product(BUFFERS, SIDES), cycle(REACHES), strict=False)
)
"""Both sides of each buffer, and each reach: a third of all."""
SOME: tuple[tuple[str, str, str], ...] = (("output", "after", "row"), ("scratch", "before", "element"))
"""For extensions of torch, which take up to a minute to build."""


def _require_found(judge: GuardedJudge, language: str, cases: Iterable[tuple[str, str, str]]) -> None:
    """Every store out of bounds is found and described; the same kernel without it passes."""
    honest = write_kernel(language, "output", "after", 0)
    faulty = {case: write_kernel(language, case[0], case[1], REACHES[case[2]]) for case in cases}
    judge.build([honest, *faulty.values()])
    assert judge.check(honest) == ""
    for (buffer, side, reach), source in faulty.items():
        edge = "after the end" if side == "after" else "before the start"
        expected = f"writes out of bounds: {4 * REACHES[reach]} bytes {edge} of {BUFFERS[buffer]} ("
        reason = judge.check(source)
        assert reason.startswith(expected), (buffer, side, reach, reason)


@pytest.mark.parametrize("language", ["cpp", "python"])
def test_stores_out_of_bounds_are_found_on_a_cpu(cpu: GuardedJudge, language: str) -> None:
    _require_found(cpu, language, EACH)


@pytest.mark.long
@pytest.mark.parametrize("when", ["in forward", "between two calls"])
def test_guards_explain_a_crash_also_of_a_later_free(cpu: GuardedJudge, when: str) -> None:
    crash = f"{when}: the process was killed by SIGSEGV (Segmentation fault)"
    reason = cpu.explain(write_kernel("cpp", "output", "before", 1), crash)
    assert reason.startswith(f"{crash}; writes out of bounds: 4 bytes before the start of output 0 ("), reason


@pytest.mark.parametrize(
    ("language", "cases"),
    [
        pytest.param("cpp", ALL, marks=pytest.mark.long),
        pytest.param("python", ALL, marks=pytest.mark.long),
        ("load_inline", SOME),
    ],
)
def test_all_stores_out_of_bounds_are_found_on_a_cpu(
    cpu: GuardedJudge, language: str, cases: Iterable[tuple[str, str, str]]
) -> None:
    _require_found(cpu, language, cases)


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["cuda", "triton", "load_inline_cuda"])
def test_stores_out_of_bounds_are_found_on_a_gpu(gpu: GuardedJudge, language: str) -> None:
    _require_found(gpu, language, SOME if language.startswith("load_inline") else ALL)


def _require_additions_found(
    judge: GuardedJudge, language: str, edges: Iterable[tuple[str, str]] = tuple(product(BUFFERS, SIDES))
) -> None:
    """A kernel that adds to memory out of bounds changes neither NaN nor huge numbers there."""
    faulty = {(buffer, side): write_kernel(language, buffer, side, 1, adds=True) for buffer, side in edges}
    judge.build(faulty.values())
    for (buffer, side), source in faulty.items():
        edge = "after the end" if side == "after" else "before the start"
        reason = judge.check(source)
        assert reason.startswith("writes out of bounds: ") and f" {edge} of " in reason, (
            buffer,
            side,
            reason,
        )


def test_additions_out_of_bounds_are_found_on_a_cpu(cpu: GuardedJudge) -> None:
    _require_additions_found(cpu, "cpp", [("output", "after"), ("input", "before")])


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_additions_out_of_bounds_are_found_on_a_gpu(gpu: GuardedJudge, language: str) -> None:
    _require_additions_found(gpu, language)


def test_a_guarded_process_never_asks_its_allocator_about_memory() -> None:
    """torch raises where a pluggable allocator is asked; in a process of its own, because it stays so."""
    program = """
import torch
from kernelpro.lab.sandbox.cuda_guards import avoid_allocator_queries
avoid_allocator_queries()
torch.backends.cudnn.benchmark = True
assert torch.backends.cudnn.benchmark is False
with torch.backends.cudnn.flags(enabled=True, benchmark=True):
    assert torch.backends.cudnn.benchmark is False
torch.backends.cudnn.deterministic = True
assert torch.backends.cudnn.deterministic is True
assert torch._C._cuda_memoryStats(0) == {}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.gpu
def test_a_candidate_that_lets_cudnn_choose_is_guarded(gpu: GuardedJudge) -> None:
    honest = write_kernel("triton", "output", "after", 0)
    chooses = """
torch.backends.cudnn.benchmark = True
torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda"))
assert torch.cuda.memory_allocated() == 0
"""
    assert gpu.check(f"import torch\n{honest}\n{chooses}") == ""


@pytest.mark.parametrize(
    "scratch",
    [
        "float* s = (float*)malloc(1000 * sizeof(float)); s[1000] = 2; use(s); free(s);",
        "float* s = (float*)calloc(1000, sizeof(float)); s[1000] = 2; use(s); free(s);",
        "float* s = (float*)aligned_alloc(64, 4000); s[1000] = 2; use(s); free(s);",
        "float* s = new float[1000]; s[1000] = 2; use(s); delete[] s;",
        "float* s = new (std::nothrow) float[1000]; s[1000] = 2; use(s); delete[] s;",
        "float* s = (float*)valloc(4000); s[1000] = 2; use(s); free(s);",
        "std::vector<float> s(1000); use(s.data()); s.data()[1000] = 2; use(s.data());",
        "static float* s = (float*)malloc(4000); s[1000] = 2; use(s);",
        "static float* s = nullptr; if (!s) s = (float*)malloc(400); s = (float*)realloc(s, 4000); s[1000] = 2; use(s);",
        "static float* s[99]; for (auto& t : s) if (!t) t = (float*)malloc(4000); s[98][1000] = 2; use(s[98]);",
    ],
)
def test_a_store_behind_memory_of_its_own_is_found(cpu: GuardedJudge, scratch: str) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    include = "#include <cstdlib>\n#include <malloc.h>\n#include <new>\n#include <vector>\n__attribute__((noipa)) void use(float*) {}\n"
    source = honest.replace('extern "C" int', f'{include}extern "C" int').replace(
        "return 0;", f"{scratch}\n    return 0;"
    )
    assert cpu.check(source) == "writes out of bounds: 4 bytes after the end of a scratch buffer (4000 bytes)"
    assert cpu.check(source.replace("[1000] = 2", "[999] = 2")) == ""


@pytest.mark.parametrize("edge", ["after the end", "before the start"])
def test_a_copy_from_out_of_bounds_to_out_of_bounds_is_found(cpu: GuardedJudge, edge: str) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    ends = ("0", "64 * 250 + 1") if edge == "after the end" else ("-1", "64 * 250")
    copies = "for (long i = {}; i < {}; ++i) ((int*)out)[i] = ((int*)scratch)[i];\n    return 0;".format(
        *ends
    )
    adds = "for (long i = 0; i < 64 * 250; ++i) scratch[i] += y[i];\n    "
    reason = cpu.check(honest.replace("return 0;", adds + copies))
    assert reason.startswith("writes out of bounds: ") and f" {edge} of output 0 " in reason, reason


@pytest.mark.gpu
@pytest.mark.parametrize("edge", ["after the end", "before the start"])
def test_a_copy_from_out_of_bounds_to_out_of_bounds_is_found_on_a_gpu(gpu: GuardedJudge, edge: str) -> None:
    honest = write_kernel("cuda", "output", "after", 0)
    place = "64 * 250" if edge == "after the end" else "-1"
    copy = f"if (blockIdx.x + threadIdx.x == 0) ((int*)out)[{place}] = ((int*)scratch)[{place}];\n    "
    loop = "for (long i = blockIdx.x * blockDim.x + threadIdx.x; i < 64 * 250;"
    reason = gpu.check(honest.replace(loop, copy + loop, 1))
    assert reason.startswith("writes out of bounds: ") and f" {edge} of output 0 " in reason, reason


def test_stores_around_memory_that_outlives_a_call_are_found(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    native = """#include <cstdlib>
        static float* s;
        extern "C" int setup() { s = (float*)malloc(4000); return 0; }
        extern "C" int"""
    source = honest.replace('extern "C" int', native).replace(
        "self.weight = ", "lib.setup()\n        self.weight = "
    )
    for index, place in ((-1, "4 bytes before the start"), (3000, "4 bytes after the end")):
        reason = cpu.check(source.replace("return 0;\n}\n", f"s[{index}] = 2;\n    return 0;\n}}\n"))
        assert reason.startswith(f"writes out of bounds: {place} of a scratch buffer (4000 bytes)"), reason
    assert cpu.check(source.replace("return 0;\n}\n", "s[999] = 2;\n    return 0;\n}\n")) == ""


@pytest.mark.parametrize(
    ("buffer", "address", "places"),
    [
        ("np.empty(1000, np.float32)", "s.ctypes.data", (-1, 1000, 3000)),
        ("(ctypes.c_float * 1000)()", "ctypes.addressof(s)", (1000,)),
    ],
)
def test_stores_around_buffers_of_python_are_found(
    cpu: GuardedJudge, buffer: str, address: str, places: tuple[int, ...]
) -> None:
    honest = "import ctypes\nimport numpy as np\n" + write_kernel("cpp", "output", "after", 0)

    def storing(place: int) -> str:
        store = f"s = self.s = {buffer}; ctypes.c_float.from_address({address} + 4 * {place}).value = 2"
        return honest.replace("        return out", f"        {store}\n        return out")

    for place in places:
        assert "of a scratch buffer (4000 bytes)" in cpu.check(storing(place))
    assert cpu.check(storing(999)) == ""


def test_a_store_in_a_later_call_is_found(cpu: GuardedJudge) -> None:
    source = write_kernel("cpp", "output", "after", 1)
    store = "for (long i = 0; i < count; ++i) bad"
    late = source.replace(store, f"static int calls = 0;\n    if (++calls == 8) {store}")
    assert cpu.check(late) == "writes out of bounds: 4 bytes after the end of a scratch buffer (64000 bytes)"


def test_a_kernel_that_is_slow_only_beside_guards_is_not_waited_for(
    cpu: GuardedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelpro.lab.judge.memory_safety._MIN_SECONDS", 1.5)
    honest = write_kernel("cpp", "output", "after", 0)
    sleeps = honest.replace(
        "    def forward(self, x, y):", "    def forward(self, x, y):\n        time.sleep(1)"
    )
    note = cpu.check(f"import time\n{sleeps}")
    assert note == (
        "the kernel could not be checked for writes out of bounds in all guarded calls: "
        "they take more than 2 s"
    )
    hangs = cpu.check(f"import time\n{sleeps}".replace("sleep(1)", "sleep(9)"))
    assert hangs.startswith("the kernel could not be checked for writes out of bounds: "), hangs
    stores = write_kernel("cpp", "output", "after", 1)
    slow = stores.replace(
        "    def forward(self, x, y):", "    def forward(self, x, y):\n        time.sleep(1)"
    )
    assert cpu.check(f"import time\n{slow}").startswith("writes out of bounds: 4 bytes after the end of ")


def test_a_store_behind_one_of_many_buffers_is_found(cpu: GuardedJudge) -> None:
    source = write_kernel("cpp", "output", "after", 1).replace("bad[start + i]", "bad[start + 8000 + i]")
    many = source.replace("scratch = torch", "many = [torch.empty(8) for _ in range(99)]; scratch = torch")
    assert "accesses memory out of bounds: 32000 bytes after the end of a buffer" in cpu.check(many)


def test_a_store_far_away_is_reported_with_its_distance(cpu: GuardedJudge) -> None:
    source = write_kernel("cpp", "scratch", "after", 1).replace("bad[start + i]", "bad[start + 99 + i]")
    assert cpu.check(source).endswith("of a scratch buffer (64000 bytes), from 396 bytes on")


def test_an_access_behind_the_margin_is_reported(cpu: GuardedJudge) -> None:
    source = write_kernel("cpp", "scratch", "after", 300_000)
    assert "after the end of a buffer of 64000 bytes" in cpu.check(source)


def test_a_result_that_depends_on_memory_never_written_is_wrong(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    adds = honest.replace("out[i] = scratch[i]", "out[i] = 0 * out[i] + scratch[i]")
    assert "depends on memory that it did not write" in cpu.check(adds)
    keeps = "static float* s = (float*)malloc(4000); out[0] += 0 * s[9];\n    return 0;"
    source = honest.replace('extern "C" int', '#include <cstdlib>\nextern "C" int').replace(
        "return 0;", keeps
    )
    assert "depends on memory that it did not write" in cpu.check(source)


def test_a_result_that_depends_on_freed_memory_is_wrong(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    after = "float* volatile s = (float*)malloc(4000); s[9] = 1; free((void*)s); out[0] += 0 * s[9];\n    return 0;"
    source = honest.replace('extern "C" int', '#include <cstdlib>\nextern "C" int').replace(
        "return 0;", after
    )
    assert "depends on memory that it did not write" in cpu.check(source)


def test_settings_for_all_code_of_the_process_are_noted(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    changes = (
        "torch.set_num_threads(torch.get_num_threads() + 1)\ntorch.set_float32_matmul_precision('high')\n"
        "torch.set_flush_denormal(True)\n"
    )
    reseeds = honest.replace("        scratch = ", "        torch.manual_seed(1)\n        scratch = ")
    assert cpu.check(f"import torch\n{changes}{reseeds}") == (
        "changes the precision of matrix products, the number of threads, the rounding of denormal numbers to "
        "zero, the seed of random numbers for all code of its process"
    )


def test_a_buffer_of_the_reference_may_not_be_modified(quick_judge: QuickJudge) -> None:
    buffer = 'self.register_buffer("scale", torch.rand(dim) + 0.5)'
    source = TASK.replace("    def forward", f"        {buffer}\n\n    def forward").replace(
        "+ y", "* self.scale + y"
    )
    folds = source.replace("class Model", "class ModelNew").replace("        return x * self.weight", "FOLD")
    folds = folds.replace(
        "FOLD",
        "        if hasattr(self, 'raw'):\n            self.scale.mul_(self.raw)\n            del self.raw\n        return x",
    )
    folds = folds.replace(buffer, f"{buffer}; self.raw = self.weight")
    verdict = quick_judge.judge(Task(source, "scaled"), Candidate(folds))
    assert verdict.status is Status.WRONG and "buffer scale" in verdict.reason, verdict.reason


def test_a_result_that_depends_on_memory_out_of_bounds_is_wrong(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    maximum = "out[0] = y[64 * 250] > out[0] && y[64 * 250] < 1e38 ? y[64 * 250] : out[0];\n    return 0;"
    assert "outside its buffers (filled with 0xFF, around inputs with 0x7B)" in cpu.check(
        honest.replace("return 0;", maximum)
    )


def test_a_read_out_of_bounds_that_changes_nothing_passes(cpu: GuardedJudge) -> None:
    honest = write_kernel("cpp", "output", "after", 0)
    read = "volatile float unused = y[64 * 250 + 3]; (void)unused;\n    return 0;"
    assert cpu.check(honest.replace("return 0;", read)) == ""
