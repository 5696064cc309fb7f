"""What the check and the dispatch of a drop-in module cost per call, against calling the kernel directly.

    python benchmarks/dropin_overhead.py [cpu|cuda] [--native]

`--native` builds the guards in C++ first (`kernelpro.build_guards()`).

The kernel of the first table returns a tensor that exists, so that the host's time is all there is. The
fastest of 200 repetitions of 200 calls, in microseconds: the kernel alone, the drop-in module, the
difference, and the check alone. The fastest, because other work on the machine only adds.

On a GPU, a second table has real kernels for RMSNorm of 64 rows, which the GPU computes faster than the host
launches them: written in Triton and in CUDA, and by torch.compile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import kernelpro
from kernelpro.dropin import reads
from kernelpro.dropin.kernel import KernelFactory
from kernelpro.dropin.module import optimize_module
from kernelpro.dropin.spec import KernelSpec, signature, state_signature


class Norm(nn.Module):
    """One module with two settings."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.weight, self.eps, self.act = nn.Parameter(torch.randn(width)), 1e-5, "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return y if self.act == "none" else torch.relu(y)


class Mlp(nn.Module):
    """Three submodules, six parameters."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


class Kernel(nn.Module):
    """Returns the output of the first call."""

    output: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output


def microseconds(call: Callable[[], object]) -> float:
    """The shortest time of a call."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(200):
            call()
        times.append((time.perf_counter() - start) / 200 * 1e6)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    return min(times)


@torch.no_grad()
def measure_winners() -> None:
    """Print the table of real kernels."""
    from kernelpro.lab.seeds import seed_source
    from kernelpro.lab.tasks.reference import Reference
    from kernelpro.pools import winners
    from kernelpro.tasks import load_task, with_shapes

    folder = Path(__file__).parents[1] / "examples" / "gpu" / "rmsnorm"
    task = with_shapes(load_task(folder / "task.py"), ["rows=64"]).for_target("cuda")
    sources = {name: (folder / f"{name}_registers.py").read_text() for name in ("triton", "cuda")}
    sources["torch.compile"] = seed_source(Reference(task, "cuda", 0), "compile")
    print("\n| winner | directly, us | drop-in, us | difference | module under torch.compile, us |")
    print("|---|---|---|---|---|")
    for name, source in sources.items():
        (spec,) = winners.describe_winner(task, [source], "cuda", None)
        factory = winners.winner_factory(spec, source, task)
        module, x = winners.build_reference(task).cuda(), torch.randn(64, 4096, device="cuda")
        fast = optimize_module(module, factory, strict=True)
        kernel = factory.create(module, x.device)
        compiled = torch.compile(module, fullgraph=True)
        fast(x), kernel(x), compiled(x)
        times = [microseconds(lambda c=call, x=x: c(x)) for call in (kernel, fast, compiled)]
        print(f"| {name} | {times[0]:.2f} | {times[1]:.2f} | {times[1] - times[0]:.2f} | {times[2]:.2f} |")


@torch.no_grad()
def main(device: str) -> None:
    """Print the tables."""
    print(f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    print("| module | parameters | kernel, us | drop-in, us | difference | check, us |")
    print("|---|---|---|---|---|---|")
    for module in (Norm(), Mlp(), nn.TransformerEncoderLayer(64, 4, batch_first=True)):
        module, x = module.eval().to(device), torch.randn(4, 8, 64, device=device)
        with reads.recording(module) as read:
            expected = module(x)

        def load(expected: torch.Tensor = expected) -> type[nn.Module]:
            return type("Constant", (Kernel,), {"output": expected})

        spec = KernelSpec(
            type(module).__name__, "benchmark", device, False, signature((x,)), signature(expected),
            state_signature(module), read.describe(),
        )  # fmt: skip
        factory = KernelFactory(spec, load)
        factory._kernel_names = lambda state, own: {}  # type: ignore[method-assign]
        fast = optimize_module(module, factory, strict=True)
        fast(x)
        kernel, binding = load()(), fast._kernelpro.bindings[0]
        alone, whole = microseconds(lambda k=kernel, x=x: k(x)), microseconds(lambda f=fast, x=x: f(x))
        check = microseconds(lambda b=binding, x=x: b.check((x,)))
        count = len(list(module.parameters()))
        print(f"| {spec.name} | {count} | {alone:.2f} | {whole:.2f} | {whole - alone:.2f} | {check:.2f} |")
    if device == "cuda":
        measure_winners()


if __name__ == "__main__":
    if "--native" in sys.argv:
        kernelpro.build_guards()
    devices = [argument for argument in sys.argv[1:] if argument != "--native"]
    main(devices[0] if devices else "cuda" if torch.cuda.is_available() else "cpu")
