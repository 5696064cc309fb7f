"""The playbook's GPU kernels on a GPU: are they right, and how near to the bandwidth of a copy?

    python benchmarks/playbook_gpu.py [--only NAME ...] [--small]        # prints a Markdown table; --small: no timing

1. Every family of the tests, at its small shapes, in every first design: right or wrong, against the reference's own error.
2. Families at the sizes of real models: milliseconds of each first design, of the reference and of torch.compile, and the
   share of a copy's bandwidth that the least traffic (inputs once, outputs once) has in the best one's time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "authors")]

from playing import program, task  # noqa: E402
from test_playbook_families import FAMILIES  # noqa: E402

from kernelpro.authors.author import NoIdea  # noqa: E402
from kernelpro.authors.playbook.playbook import WRITERS  # noqa: E402
from kernelpro.lab import tree  # noqa: E402
from kernelpro.lab.tasks import parameters  # noqa: E402
from kernelpro.lab.tasks.reference import Reference  # noqa: E402
from kernelpro.records import Task  # noqa: E402

LARGE = {
    "gelu": task("F.gelu(a)", "torch.randn(8192, 8192)"),
    "gelu, bfloat16": task("F.gelu(a)", "torch.randn(8192, 8192, dtype=torch.bfloat16)"),
    "bias, relu": task("F.relu(a + self.b)", "torch.randn(16384, 4096)", "self.b = nn.Parameter(torch.randn(4096))"),
    "swiglu": task("x, y = a.chunk(2, -1); return F.silu(x) * y", "torch.randn(8192, 16384)"),
    "transpose, add": task("a.t() + b", "torch.randn(8192, 8192), torch.randn(8192, 8192)"),
    "softmax": task("a.softmax(-1)", "torch.randn(8192, 8192)"),
    "softmax, long rows": task("a.softmax(-1)", "torch.randn(256, 393216)"),
    "softmax, bfloat16": task("a.softmax(-1)", "torch.randn(16384, 4096, dtype=torch.bfloat16)"),
    "softmax, dim 1": task("a.softmax(1)", "torch.randn(64, 256, 4096)"),
    "layer norm": task("self.n(a + b)", "torch.randn(16384, 4096), torch.randn(16384, 4096)", "self.n = nn.LayerNorm(4096)"),
    "rms norm": task("self.n(a)", "torch.randn(65536, 1024)", "self.n = nn.RMSNorm(1024)"),
    "group norm": task("self.n(a)", "torch.randn(16, 64, 256, 256)", "self.n = nn.GroupNorm(8, 64)"),
    "batch norm": task("F.batch_norm(a, None, None, training=True)", "torch.randn(16, 64, 256, 256)"),
    "row sums": task("a.sum(-1)", "torch.randn(16384, 8192)"),
    "column sums": task("a.sum(0)", "torch.randn(16384, 8192)"),
    "middle mean": task("a.mean(1)", "torch.randn(64, 512, 4096)"),
    "one sum": task("(a * a).sum()", "torch.randn(1 << 27)"),
    "argmax": task("a.argmax(-1)", "torch.randn(8192, 16384)"),
    "cumsum": task("a.cumsum(1)", "torch.randn(8192, 8192)"),
    "cumsum, dim 0": task("a.cumsum(0)", "torch.randn(8192, 8192)"),
    "max pooling": task("F.max_pool2d(a, 3, 2, 1)", "torch.randn(16, 64, 224, 224)"),
    "average pooling": task("F.avg_pool2d(a, 2)", "torch.randn(16, 64, 256, 256)"),
    "depthwise convolution": task(
        "self.c(a)", "torch.randn(16, 64, 224, 224)", "self.c = nn.Conv2d(64, 64, 3, padding=1, groups=64)"
    ),
    "cross entropy": task("F.cross_entropy(a, b)", "torch.randn(8192, 32000), torch.randint(0, 32000, (8192,))"),
    "mean squared error": task("F.mse_loss(a, b)", "torch.randn(16384, 8192), torch.randn(16384, 8192)"),
    "embedding": task("self.e(a)", "torch.randint(0, 50000, (64, 1024))", "self.e = nn.Embedding(50000, 1024)"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    for name, given in FAMILIES.items():
        if not asked.only or name in asked.only:
            print(f"{name}: {', '.join(verdict(given))}", flush=True)
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


def verdict(given: Task) -> list[str]:
    return [
        f"{label} {'right' if error <= 20 or (error <= 4e4 and halves) else f'WRONG ({error:.0f})'}"
        for label, error, halves in tried(given)
    ]


def tried(given: Task) -> list[tuple[str, float, bool]]:
    """Of each first design of each language: its largest error in units of the reference's own, or of 1e-6."""
    found = []
    reference = Reference(given, "cuda", 0)
    inputs = arguments(reference)
    with torch.no_grad():
        wanted = flat(reference.model()(*inputs))
        exact = flat(reference.model(torch.float64)(*widened(inputs)))
    for label, model in candidates(given, reference):
        with torch.no_grad():
            got = flat(model(*inputs))
        errors = [0.0]
        for one, other, true in zip(got, wanted, exact, strict=True):
            size = float(true.double().abs().mean()) + 1e-30
            own = float((other.double() - true.double()).abs().max()) / size
            errors.append(float((one.double() - true.double()).abs().max()) / size / max(own, 1e-6))
        found.append((label, max(errors), any(one.dtype in (torch.half, torch.bfloat16) for one in got)))
    return found


def row(given: Task, bandwidth: float) -> list[str]:
    reference = Reference(given, "cuda", 0)
    inputs = arguments(reference)
    model = reference.model()
    with torch.no_grad():
        times = {label: milliseconds(lambda m=made: m(*inputs)) for label, made in candidates(given, reference)}  # type: ignore[misc]
        traffic = sum(t.nbytes for t in (*flat(inputs), *flat(model(*inputs)), *model.parameters()))
        plain, compiled = milliseconds(lambda: model(*inputs)), milliseconds(lambda: torch.compile(model)(*inputs))
    best = min(times, key=lambda label: times[label])
    share = traffic / bandwidth / times[best] * 1e3
    listed = ", ".join(f"{label} {ms:.3f}" for label, ms in times.items())
    return [listed, best, f"{plain:.3f}", f"{compiled:.3f}", f"{share:.0%}"]


def candidates(given: Task, reference: Reference) -> list[tuple[str, torch.nn.Module]]:
    made = []
    read = program(given)
    for writer in (writer for writer in WRITERS if writer.target == "cuda"):
        for place, seed in enumerate(writer.seeds(read)):
            try:
                source = writer.write(read, seed.design)
            except NoIdea as reason:
                print(f"{writer.language}: {reason}", file=sys.stderr)
                continue
            made.append((f"{writer.language} {place}", loaded(source, reference)))
    return made


def loaded(source: str, reference: Reference) -> torch.nn.Module:
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:  # Triton reads the file of its kernels
        file.write(source)
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, file.name, "exec"), names)
    model: torch.nn.Module = names["ModelNew"](*reference.init_inputs)
    parameters.give(model, reference.state())
    return model.to("cuda")


def arguments(reference: Reference) -> Any:
    return tree.unpack(*reference.inputs(7))


def widened(inputs: Any) -> Any:
    return [value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, (list, tuple)) else []


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
