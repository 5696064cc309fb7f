"""Check and time the playbook's GPU kernels on a GPU.

    python benchmarks/playbook_gpu.py [--only NAME ...] [--small]

1. Every family of the tests, at its small shapes, in every first design: correct or wrong, against the
   reference's own error. Designs use TF32 for products of float32, as written: an operand then has 11 bits,
   and the unit of error is 2^-11 of the result's size. Rounding alone makes 2 to 6 units in these families;
   wrong kernels are off by hundreds. tests/authors/test_playbook_triton.py checks fp32 products to the last
   bits.
2. Families at the sizes of real models: milliseconds of each first design, of the reference and of
   torch.compile, and the best design's bandwidth as a share of a copy's, counting inputs and outputs once.
   `--small` skips this.

A design that does not compile or run is reported as failed, with the last line of the error. Prints a line
per small family and a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "authors")]

from playbook_harness import make_task, program_of  # noqa: E402
from test_playbook_families import FAMILIES  # noqa: E402

from kernelpro.authors.author import NoProposal  # noqa: E402
from kernelpro.authors.playbook.playbook import BACKENDS  # noqa: E402
from kernelpro.lab import tree  # noqa: E402
from kernelpro.lab.tasks import parameters  # noqa: E402
from kernelpro.lab.tasks.reference import Reference  # noqa: E402
from kernelpro.records import Task  # noqa: E402

Value = TypeVar("Value")

MAX_ERROR, MAX_HALF_ERROR = 20.0, 4e4
"""Largest error that passes, in units; more if results are rounded to half precision."""
FLOAT32_UNIT, TF32_UNIT = 1e-6, 2.0**-11
"""Smallest units, relative to a result's size."""
TF32_PRODUCT = 'input_precision="tf32"'
"""Marks products in TF32 in a candidate's source."""

LARGE = {
    "gelu": make_task("F.gelu(a)", "torch.randn(8192, 8192)"),
    "gelu, bfloat16": make_task("F.gelu(a)", "torch.randn(8192, 8192, dtype=torch.bfloat16)"),
    "bias, relu": make_task(
        "F.relu(a + self.b)", "torch.randn(16384, 4096)", "self.b = nn.Parameter(torch.randn(4096))"
    ),
    "swiglu": make_task("x, y = a.chunk(2, -1); return F.silu(x) * y", "torch.randn(8192, 16384)"),
    "transpose, add": make_task("a.t() + b", "torch.randn(8192, 8192), torch.randn(8192, 8192)"),
    "softmax": make_task("a.softmax(-1)", "torch.randn(8192, 8192)"),
    "softmax, long rows": make_task("a.softmax(-1)", "torch.randn(256, 393216)"),
    "softmax, bfloat16": make_task("a.softmax(-1)", "torch.randn(16384, 4096, dtype=torch.bfloat16)"),
    "softmax, dim 1": make_task("a.softmax(1)", "torch.randn(64, 256, 4096)"),
    "layer norm": make_task(
        "self.n(a + b)", "torch.randn(16384, 4096), torch.randn(16384, 4096)", "self.n = nn.LayerNorm(4096)"
    ),
    "rms norm": make_task("self.n(a)", "torch.randn(65536, 1024)", "self.n = nn.RMSNorm(1024)"),
    "group norm": make_task("self.n(a)", "torch.randn(16, 64, 256, 256)", "self.n = nn.GroupNorm(8, 64)"),
    "batch norm": make_task("F.batch_norm(a, None, None, training=True)", "torch.randn(16, 64, 256, 256)"),
    "row sums": make_task("a.sum(-1)", "torch.randn(16384, 8192)"),
    "column sums": make_task("a.sum(0)", "torch.randn(16384, 8192)"),
    "middle mean": make_task("a.mean(1)", "torch.randn(64, 512, 4096)"),
    "one sum": make_task("(a * a).sum()", "torch.randn(1 << 27)"),
    "argmax": make_task("a.argmax(-1)", "torch.randn(8192, 16384)"),
    "cumsum": make_task("a.cumsum(1)", "torch.randn(8192, 8192)"),
    "cumsum, dim 0": make_task("a.cumsum(0)", "torch.randn(8192, 8192)"),
    "max pooling": make_task("F.max_pool2d(a, 3, 2, 1)", "torch.randn(16, 64, 224, 224)"),
    "average pooling": make_task("F.avg_pool2d(a, 2)", "torch.randn(16, 64, 256, 256)"),
    "depthwise convolution": make_task(
        "self.c(a)", "torch.randn(16, 64, 224, 224)", "self.c = nn.Conv2d(64, 64, 3, padding=1, groups=64)"
    ),
    "cross entropy": make_task(
        "F.cross_entropy(a, b)", "torch.randn(8192, 32000), torch.randint(0, 32000, (8192,))"
    ),
    "mean squared error": make_task("F.mse_loss(a, b)", "torch.randn(16384, 8192), torch.randn(16384, 8192)"),
    "embedding": make_task(
        "self.e(a)", "torch.randint(0, 50000, (64, 1024))", "self.e = nn.Embedding(50000, 1024)"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these families")
    parser.add_argument("--small", action="store_true", help="check only, without timing")
    arguments = parser.parse_args()
    for name, task in FAMILIES.items():
        if not arguments.only or name in arguments.only:
            print(f"{name}: {', '.join(check_designs(task))}", flush=True)
    if arguments.small:
        return
    bandwidth = copy_bandwidth()
    print(f"\ncopy: {bandwidth / 1e9:.0f} GB/s\n")
    print("| family | designs, ms | best | reference, ms | torch.compile, ms | of a copy |")
    print("|---|---|---|---|---|---|")
    for name, task in LARGE.items():
        if not arguments.only or name in arguments.only:
            print(f"| {name} | {' | '.join(time_designs(task, bandwidth))} |", flush=True)


def check_designs(task: Task) -> list[str]:
    """Check each first design of each language."""
    reference = Reference(task, "cuda", 0)
    inputs = make_inputs(reference)
    with torch.no_grad():
        expected = flat(reference.model()(*inputs))
        exact = flat(reference.model(torch.float64)(*to_double(inputs)))
    results = []
    for label, source in candidates(task):
        outputs = try_call(partial(run_candidate, source, reference, inputs))
        if isinstance(outputs, str):
            results.append(f"{label} FAILED ({outputs})")
            continue
        error = largest_error(outputs, expected, exact, TF32_UNIT if TF32_PRODUCT in source else FLOAT32_UNIT)
        half = any(output.dtype in (torch.half, torch.bfloat16) for output in outputs)
        is_correct = error <= (MAX_HALF_ERROR if half else MAX_ERROR)
        results.append(f"{label} {'correct' if is_correct else f'WRONG ({error:.0f})'}")
    return results


def largest_error(
    outputs: list[torch.Tensor], expected: list[torch.Tensor], exact: list[torch.Tensor], min_unit: float
) -> float:
    """The largest error, in units of the reference's own error or of `min_unit`, whichever is larger."""
    errors = [0.0]
    for output, reference, truth in zip(outputs, expected, exact, strict=True):
        size = float(truth.double().abs().mean()) + 1e-30
        own = float((reference.double() - truth.double()).abs().max()) / size
        error = float((output.double() - truth.double()).abs().max()) / size / max(own, min_unit)
        errors.append(math.inf if math.isnan(error) else error)
    return max(errors)


def time_designs(task: Task, bandwidth: float) -> list[str]:
    """Time the first designs of a task; returns the cells of its row."""
    reference = Reference(task, "cuda", 0)
    inputs = make_inputs(reference)
    model = reference.model()
    times: dict[str, float | str] = {}
    for label, source in candidates(task):
        times[label] = try_call(partial(time_candidate, source, reference, inputs))
    with torch.no_grad():
        traffic = sum(tensor.nbytes for tensor in (*flat(inputs), *flat(model(*inputs)), *model.parameters()))
    eager, compiled = time_model(model, inputs), time_model(torch.compile(model), inputs)
    listed = ", ".join(
        f"{label} {f'failed ({ms})' if isinstance(ms, str) else f'{ms:.3f}'}" for label, ms in times.items()
    )
    working = {label: ms for label, ms in times.items() if not isinstance(ms, str)}
    best = min(working, key=lambda label: working[label], default="none")
    share = f"{traffic / bandwidth / working[best] * 1e3:.0%}" if working else "-"
    return [listed, best, f"{eager:.3f}", f"{compiled:.3f}", share]


def try_call(call: Callable[[], Value]) -> Value | str:
    """The value of a call, or one line that says why it failed."""
    try:
        with torch.no_grad():
            value = call()
        torch.cuda.synchronize()
        return value
    except Exception as error:  # from a compiler, a launcher or the device
        lines = str(error).strip().splitlines() or ["no reason given"]
        return f"{type(error).__name__}: {lines[-1].strip()}"


def candidates(task: Task) -> list[tuple[str, str]]:
    """The sources of all first designs, with labels."""
    sources = []
    program = program_of(task)
    for backend in (backend for backend in BACKENDS if backend.target == "cuda"):
        for index, seed in enumerate(backend.seeds(program)):
            try:
                source = backend.write(program, seed.design)
            except NoProposal as reason:
                print(f"{backend.language}: {reason}", file=sys.stderr)
                continue
            sources.append((f"{backend.language} {index}", source))
    return sources


def load_candidate(source: str, reference: Reference) -> torch.nn.Module:
    """Load a candidate with the reference's state. Its file stays: Triton reads the source of its kernels."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(source)
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, file.name, "exec"), names)
    model: torch.nn.Module = names["ModelNew"](*reference.init_inputs)
    parameters.load_reference_state(model, reference.state())
    return model.to("cuda")


def make_inputs(reference: Reference) -> Any:
    """Inputs of the task, from a fixed seed."""
    return tree.unflatten(*reference.inputs(7))


def run_candidate(source: str, reference: Reference, inputs: Any) -> list[torch.Tensor]:
    """The outputs of a candidate."""
    return flat(load_candidate(source, reference)(*inputs))


def time_candidate(source: str, reference: Reference, inputs: Any) -> float:
    """Milliseconds of a call of a candidate."""
    return time_model(load_candidate(source, reference), inputs)


def to_double(inputs: Any) -> Any:
    """The inputs with floating-point tensors in float64."""
    return [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    ]


def flat(value: Any) -> list[torch.Tensor]:
    """All tensors in a nest of lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, (list, tuple)) else []


def time_model(model: Callable[..., object], inputs: Any) -> float:
    """Milliseconds of a call of a model."""
    with torch.no_grad():
        return milliseconds(lambda: model(*inputs))


def milliseconds(call: Callable[[], object], rounds: int = 20) -> float:
    """The median time of a call, with the L2 cache flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    call()
    times = []
    for _ in range(rounds):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[rounds // 2]


def copy_bandwidth() -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    return 2 * source.nbytes / milliseconds(lambda: source.clone()) * 1e3


if __name__ == "__main__":
    main()
