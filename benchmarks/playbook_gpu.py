"""The playbook's GPU kernels on a GPU: are they right, and how near to the bandwidth of a copy?

    python benchmarks/playbook_gpu.py [--only NAME ...] [--small]        # prints a Markdown table; --small: no timing

1. Every family of the tests, at its small shapes, in every first design: right or wrong, against the reference's own error.
   Designs are tried as they are written, which is with TF32 for products of float32: an operand then has 11 bits, and
   2^-11 of the result's size is the unit in which the error of such a design is measured. Rounding alone makes 2 to 6
   units of it in these families; what is wrong is wrong by hundreds. That the same products are right to float32's last
   bits where a design says fp32 is for tests/authors/test_playbook_triton.py.
2. Families at the sizes of real models: milliseconds of each first design, of the reference and of torch.compile, and the
   share of a copy's bandwidth that the least traffic (inputs once, outputs once) has in the best one's time.

A design that does not compile or run is reported as failed, with the last line of what was said.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
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

Found = TypeVar("Found")

MOST, MOST_OF_HALVES = 20.0, 4e4
"""Units of error that pass; where results are rounded to halves, more."""
FLOAT32, TF32 = 1e-6, 2.0**-11
"""The least units, relative to a result's size."""
TF32_PRODUCT = 'input_precision="tf32"'
"""What a candidate says where it multiplies so."""

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
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    for name, given in FAMILIES.items():
        if not asked.only or name in asked.only:
            print(f"{name}: {', '.join(verdicts(given))}", flush=True)
    if asked.small:
        return
    bandwidth = copied()
    print(
        f"\na copy: {bandwidth / 1e9:.0f} GB/s\n\n| family | designs, ms | best | reference, ms | torch.compile, ms | of a copy |"
    )
    print("|---|---|---|---|---|---|")
    for name, given in LARGE.items():
        if not asked.only or name in asked.only:
            print(f"| {name} | {' | '.join(row(given, bandwidth))} |", flush=True)


def verdicts(given: Task) -> list[str]:
    """Of each first design of each language."""
    reference = Reference(given, "cuda", 0)
    inputs = arguments(reference)
    with torch.no_grad():
        wanted = flat(reference.model()(*inputs))
        exact = flat(reference.model(torch.float64)(*widened(inputs)))
    found = []
    for label, source in candidates(given):
        got = attempted(lambda source=source: flat(loaded(source, reference)(*inputs)))  # type: ignore[misc]
        if isinstance(got, str):
            found.append(f"{label} FAILED ({got})")
            continue
        error = largest_error(got, wanted, exact, TF32 if TF32_PRODUCT in source else FLOAT32)
        halves = any(one.dtype in (torch.half, torch.bfloat16) for one in got)
        found.append(
            f"{label} {'right' if error <= (MOST_OF_HALVES if halves else MOST) else f'WRONG ({error:.0f})'}"
        )
    return found


def largest_error(
    got: list[torch.Tensor], wanted: list[torch.Tensor], exact: list[torch.Tensor], least: float
) -> float:
    """In units of the reference's own error, or of `least` where that is smaller."""
    errors = [0.0]
    for one, other, true in zip(got, wanted, exact, strict=True):
        size = float(true.double().abs().mean()) + 1e-30
        own = float((other.double() - true.double()).abs().max()) / size
        error = float((one.double() - true.double()).abs().max()) / size / max(own, least)
        errors.append(math.inf if math.isnan(error) else error)
    return max(errors)


def row(given: Task, bandwidth: float) -> list[str]:
    reference = Reference(given, "cuda", 0)
    inputs = arguments(reference)
    model = reference.model()
    times: dict[str, float | str] = {}
    for label, source in candidates(given):
        times[label] = attempted(lambda source=source: timed(loaded(source, reference), inputs))  # type: ignore[misc]
    with torch.no_grad():
        traffic = sum(t.nbytes for t in (*flat(inputs), *flat(model(*inputs)), *model.parameters()))
    plain, compiled = timed(model, inputs), timed(torch.compile(model), inputs)
    listed = ", ".join(
        f"{label} {f'failed ({ms})' if isinstance(ms, str) else f'{ms:.3f}'}" for label, ms in times.items()
    )
    ran = {label: ms for label, ms in times.items() if not isinstance(ms, str)}
    best = min(ran, key=lambda label: ran[label], default="none")
    share = f"{traffic / bandwidth / ran[best] * 1e3:.0%}" if ran else "-"
    return [listed, best, f"{plain:.3f}", f"{compiled:.3f}", share]


def attempted(call: Callable[[], Found]) -> Found | str:
    """What the call finds, or in one line why it failed: one design that does is no reason to leave out the others."""
    try:
        with torch.no_grad():
            found = call()
        torch.cuda.synchronize()
        return found
    except Exception as error:  # a compiler's, a launcher's or the device's
        return (
            f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[-1].strip()}"
        )


def candidates(given: Task) -> list[tuple[str, str]]:
    """The sources of all first designs."""
    made = []
    read = program_of(given)
    for writer in (writer for writer in BACKENDS if writer.target == "cuda"):
        for place, seed in enumerate(writer.seeds(read)):
            try:
                source = writer.write(read, seed.design)
            except NoProposal as reason:
                print(f"{writer.language}: {reason}", file=sys.stderr)
                continue
            made.append((f"{writer.language} {place}", source))
    return made


def loaded(source: str, reference: Reference) -> torch.nn.Module:
    with tempfile.NamedTemporaryFile(
        "w", suffix=".py", delete=False
    ) as file:  # Triton reads the file of its kernels
        file.write(source)
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, file.name, "exec"), names)
    model: torch.nn.Module = names["ModelNew"](*reference.init_inputs)
    parameters.load_reference_state(model, reference.state())
    return model.to("cuda")


def arguments(reference: Reference) -> Any:
    return tree.unflatten(*reference.inputs(7))


def widened(inputs: Any) -> Any:
    return [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    ]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, (list, tuple)) else []


def timed(model: Callable[..., object], inputs: Any) -> float:
    with torch.no_grad():
        return milliseconds(lambda: model(*inputs))


def milliseconds(call: Callable[[], object], rounds: int = 20) -> float:
    """The median of calls behind each other, each after what empties the L2 cache."""
    other = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    call()
    found = []
    for _ in range(rounds):
        other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return sorted(found)[rounds // 2]


def copied() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    return 2 * source.nbytes / milliseconds(lambda: source.clone()) * 1e3


if __name__ == "__main__":
    main()
