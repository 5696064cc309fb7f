"""What the check and the dispatch of a drop-in module cost per call, against calling the kernel directly.

    python benchmarks/dropin_overhead.py [cpu|cuda]

The kernel returns a tensor that exists, so that the host's time is all there is. The fastest of 200
repetitions of 200 calls, in microseconds: the kernel alone, the drop-in module, the difference, and the check
alone. The fastest, because other work on the machine only adds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

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
    return min(times)


@torch.no_grad()
def main(device: str) -> None:
    """Print the table."""
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


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu")
