"""A run in a real notebook: progress in the output of the cell, the result as HTML, its module in the next cell."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CELLS = [
    "import torch, kernelpro\nfrom torch import nn\ntorch.set_num_threads(2)",
    "class Gate(nn.Module):\n"
    "    def __init__(self, width):\n"
    "        super().__init__()\n"
    "        self.w = nn.Parameter(torch.randn(width))\n"
    "    def forward(self, x):\n"
    "        return torch.tanh(x * self.w) + x",
    "gate, x = Gate(64).eval(), torch.randn(256, 64)\n"
    "result = kernelpro.optimize(gate, {'x': x}, author='files:kernels', target='cpu', candidates=1,\n"
    "                            compile_seed=False, finalists=0, runs_dir='runs',\n"
    "                            options=kernelpro.Options(effort='quick', baselines=('eager_fp32',)))\n"
    "result",
    "fast = result.module()\nwith torch.no_grad():\n    print(torch.allclose(fast(x), gate(x), atol=1e-5), fast.stats)",
]
KERNEL = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.empty(width))

    def forward(self, x):
        return torch.tanh(x * self.w).add_(x)
"""


def test_a_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "gate.py").write_text(KERNEL)
    monkeypatch.setenv("KERNELPRO_LOCKS", str(tmp_path / "locks"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    pages = [output.data.get("text/html", "") for output in outputs if "data" in output]
    assert any(page.startswith("<pre>author: files:kernels") for page in pages), "progress"
    assert any("<th>baseline</th>" in page and "eager_fp32" in page for page in pages), "the result"
    said = "".join(output.get("text", "") for output in outputs)
    assert "True Stats(kernel=1, fallback=0)" in said, said
