"""A run for two shapes, from inputs to the drop-in module."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from heads import Head
from two_files.layers import RootNorm
from winner_kinds import WIDTH, WRITTEN, inputs

from kernelpro import api
from kernelpro.records import Options


@pytest.mark.long
def test_one_kernel_serves_two_shapes(tmp_path: Path) -> None:
    module, inputs = Head(256).eval(), [(torch.randn(64, 256),), (torch.randn(200, 256),)]
    result = api.optimize(
        module,
        inputs,
        weights=[3, 1],
        target="cpu",
        author="playbook",
        candidates=1,
        compile_seed=False,
        options=Options(effort="quick", baselines=("eager_fp32",)),
        runs_dir=tmp_path,
        on_event=lambda event: None,
    )
    assert result.verdict and len(result.verdict.shapes) == 2, result
    assert "also right for batch" in str(result) and "on 200x256 (25 % of calls)" in str(result)
    fast = result.module()
    with torch.no_grad():
        for (x,) in inputs * 2:
            assert torch.allclose(fast(x), module(x), atol=1e-5)
    assert fast.stats.kernel == 4 and fast.stats.fallback == 0
    text = api.export(result, tmp_path / "kernel.py").read_text()
    assert "shape 200x256, 25% of calls" in text


@pytest.mark.parametrize(
    ("target", "kernels"),
    [
        pytest.param("cpu", ["cpp"], marks=pytest.mark.long),
        pytest.param("cuda", ["triton", "cuda"], marks=pytest.mark.gpu),
    ],
)
def test_written_kernels_are_judged_on_both_shapes(
    target: Literal["cpu", "cuda"], kernels: list[str], tmp_path: Path
) -> None:
    (tmp_path / "kernels").mkdir()
    for name in kernels:
        (tmp_path / "kernels" / f"{name}.py").write_text(WRITTEN[name])
    module = RootNorm(WIDTH).eval()
    result = api.optimize(
        module,
        [(inputs("cpu", 0),), (inputs("cpu", 1),)],
        weights=[1, 3],
        target=target,
        author=f"files:{tmp_path / 'kernels'}",
        candidates=len(kernels),
        compile_seed=False,
        options=Options(effort="quick", baselines=("eager_fp32",)),
        runs_dir=tmp_path,
        on_event=lambda event: None,
    )
    assert result.verdict and len(result.verdict.shapes) == 2, result
    print(result)
    fast = result.module(module.to(target), strict=True)
    with torch.no_grad():
        for number in (0, 1, 0):
            x = inputs(target, number)
            assert torch.allclose(fast(x), RootNorm.forward(fast, x), atol=1e-5)
    assert fast.stats.kernel == 3
