"""Tasks by name: `file.py:Class` and `package.module:Class`, with inputs found next to the class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from in_process import WarmCommand

from kernelpro.records import BadInput
from kernelpro.tasks import load_task

NET = """
import torch
from torch import nn
class Scaled(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
    def forward(self, x): return torch.tanh(x) * self.weight
class Quiet(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()
    def forward(self, x): return torch.tanh(x)
    def example_inputs(self): return [torch.randn(4, 4)]
def get_init_inputs(): return [64]
def get_inputs(): return [torch.randn(8, 64)]
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_class_in_a_file_is_built_with_the_inputs_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "net_of_mine.py").write_text(NET)
    task = load_task(f"{tmp_path}/net_of_mine.py:Scaled")
    assert (task.form, task.entry, task.mode) == ("module", "Scaled", "train") and task.outputs
    assert task.id == load_task(f"{tmp_path}/net_of_mine.py:Scaled").id, "weights and examples are fixed"


def test_a_class_may_have_its_own_examples_and_mode(tmp_path: Path) -> None:
    text = NET.replace("def get_init_inputs(): return [64]", "")
    (tmp_path / "quiet_net.py").write_text(text)
    task = load_task(f"{tmp_path}/quiet_net.py:Quiet")
    assert task.mode == "eval"
    assert load_task(f"{tmp_path}/quiet_net.py:Quiet", mode="train").mode == "train"


def test_a_class_in_a_package_is_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocks_of_mine").mkdir()
    (tmp_path / "blocks_of_mine" / "__init__.py").write_text("")
    (tmp_path / "blocks_of_mine" / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert load_task("blocks_of_mine.net:Scaled").entry == "Scaled"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (NET, "file.py:Absent", "defines no Absent"),
        (
            NET.replace("def get_inputs", "def inputs"),
            "file.py:Scaled",
            "no example inputs: define get_inputs",
        ),
        (NET.replace("def get_init_inputs", "def init"), "file.py:Scaled", "define get_init_inputs"),
        ("raise OSError('no')", "file.py:Scaled", "importing .*file.py raised OSError: no"),
        (NET, "absent.py:Scaled", "task file not found"),
        (NET, "no_such_package.net:Scaled", "No module named 'no_such_package'"),
    ],
)
def test_what_is_missing_is_one_line(
    text: str, name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message) as caught:
        load_task(name)
    assert "\n" not in str(caught.value)


def test_a_class_is_judged_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_kernelpro: WarmCommand
) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "kernel.py").write_text(NET.replace("class Scaled", "class ModelNew"))
    words = ["judge", "net.py:Scaled", "kernel.py", "--target", "cpu", "--quick", "--no-baseline", "compile"]
    monkeypatch.chdir(tmp_path)
    done = warm_kernelpro(*words)
    assert done.returncode == 0 and "Scaled, mode train" in done.stdout, done.stderr
