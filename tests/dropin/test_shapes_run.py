"""A run for two shapes, from inputs to the drop-in module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from heads import Head

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
