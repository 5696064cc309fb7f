"""Compiles generated CUDA with g++ and runs it on the CPU; cuda_on_cpu.h describes how, and what it detects."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelpro.authors.playbook.cuda.matmul_prelude import INSTRUCTIONS
from kernelpro.authors.playbook.cuda.syntax import FAST_FLAGS
from kernelpro.authors.playbook.cuda.warpgroup_prelude import COPIES, INSTRUCTIONS_OF
from kernelpro.authors.playbook.recurrent.kernel import EXCHANGE
from kernelpro.lab.languages.native import Library, build

_HEADER = Path(__file__).with_suffix(".h")
_COMMAND = ["g++", "-std=c++17", "-O0", "-w", "-fPIC"]
_LAUNCH = re.compile(r"(\w+)<<<([^,]+), ([^,]+), (.*?), stream>>>\((.*?)\);", re.DOTALL)
_GUARD = 1024
"""Elements before and after each tensor that a kernel must not touch: more than a faulty kernel of these tests
writes, which would otherwise damage the heap and end the test process."""


def compiler(folder: Path) -> Callable[..., Library]:
    """Returns a replacement for runtime.cuda. Precompiles the header into the folder."""
    subprocess.run(
        [*_COMMAND, "-x", "c++-header", str(_HEADER), "-o", str(folder / "cuda_on_cpu.h.gch")], check=True
    )

    def cuda(source: str, flags: Sequence[str] = ()) -> Library:
        text = source
        for functions in (INSTRUCTIONS, EXCHANGE, COPIES, *INSTRUCTIONS_OF.values()):
            text = text.replace(functions, "")
        text = re.sub(r"#include <cuda_\w+\.h>", "", text)
        text = text.replace(
            "extern __shared__ uint4 shared_memory[];",
            "uint4* const shared_memory = (uint4*)cuda_on_cpu::dynamic;",
        )
        text, count = _LAUNCH.subn(r"cuda_on_cpu::launch(\2, \3, \4, [&] { \1(\5); });", text)
        text = text.replace("launch(blocks,", "launch_together(blocks,")
        assert count == source.count("<<<") > 0
        defines = [flag for flag in flags if flag not in FAST_FLAGS]  # those are nvcc's
        command = [*_COMMAND, "-shared", f"-I{folder}", "-include", "cuda_on_cpu.h", *defines]
        return Library(build("cuda_on_cpu", text, ".cpp", command), source, lambda: 0)

    return cuda


@contextmanager
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fills new tensors and the elements around them with poison values; checks that the latter are not written."""
    allocations: list[torch.Tensor] = []
    original = torch.empty

    def empty(shape: Any, *, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        whole, inside = _fenced(original(shape, dtype=dtype, device="meta").numel(), dtype)
        inside.copy_(whole[:1].expand_as(inside))
        allocations.append(whole)
        return inside.view(shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        yield
    for whole in allocations:
        for edge in (whole[:_GUARD], whole[-_GUARD:]):
            assert torch.equal(edge.nan_to_num(7), torch.full_like(edge, 7)), "written outside the tensor"


def fenced(tensor: torch.Tensor) -> torch.Tensor:
    """A copy surrounded by poison values, which spoil the result of a kernel that reads them."""
    _, inside = _fenced(tensor.numel(), tensor.dtype)
    inside.copy_(tensor.reshape(-1))
    return inside.view(tensor.shape)


def _fenced(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.full((size + 2 * _GUARD,), float("nan") if dtype.is_floating_point else 7, dtype=dtype)
    return whole, whole[_GUARD : _GUARD + size]
