"""Exported files: their text, and their self-test, run by a Python that cannot import kernelpro."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from elsewhere import LAYERNORM, SELF_TEST, Elsewhere, candidate, fewer_rows, task

import kernelpro
from kernelpro.engine.export import (
    Winner,
    module_file_name,
    package_files,
    select_winner,
    standalone_file,
)
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Candidate, Outcome, RunConfig, Status, Step, Task, Verdict

if TYPE_CHECKING:
    from quick_judge import QuickJudge

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


# --- the self-test ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "residual_layernorm/cpp_fused",
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in (
                "column_cumsum/cpp_strips",
                "rmsnorm_swiglu/cpp_fused",
                "softmax_cross_entropy/cpp_fused",
            )
        ),
    ],
)
def test_native_kernels_stand_alone(path: str, elsewhere: Elsewhere) -> None:
    file = EXAMPLES / "cpu" / f"{path}.py"
    elsewhere.put(fewer_rows(file.with_name("task.py")), file.read_text())
    said = elsewhere.passes(SELF_TEST)
    assert (
        said.count(": kernel, relative error") == 3
        and "other batch size: reference" in said
        and "medians: kernel" in said
    )


@pytest.mark.parametrize(
    "name", ["cpp_drops_bias", pytest.param("cpp_skips_rows", marks=pytest.mark.long), "torch_claims_5x"]
)
def test_wrong_kernels_fail_their_own_test(name: str, elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / f"{name}.py").read_text())
    process = elsewhere.run(SELF_TEST)
    assert process.returncode == 1 and "FAILED" in process.stdout


def test_a_kernel_that_ignores_a_bias_of_zeros_fails(elsewhere: Elsewhere) -> None:
    init = "self.bias = nn.Parameter(torch.zeros(8))"
    elsewhere.put(task("torch.tanh(x + self.bias)", init), candidate("torch.tanh(x)", init))
    assert elsewhere.run(SELF_TEST).returncode == 1


def test_without_a_gpu_a_triton_kernel_is_skipped(elsewhere: Elsewhere) -> None:
    folder = EXAMPLES / "gpu" / "softmax"
    text = elsewhere.put(
        Task.from_file(folder / "task.py"), (folder / "triton_registers.py").read_text(), target="cuda"
    )
    ast.parse(text)
    assert "_EXPORT_MODULES" not in text and "kernelpro.lab" not in text
    process = elsewhere.run(SELF_TEST, CUDA_VISIBLE_DEVICES="")
    assert (
        process.returncode == 77 and "self-test skipped: this kernel is for an NVIDIA GPU" in process.stdout
    )


def test_triton_reads_its_kernels_from_the_file(elsewhere: Elsewhere) -> None:
    pytest.importorskip("triton")
    folder = EXAMPLES / "gpu" / "softmax"
    small = (folder / "task.py").read_text().replace("8192, 8192", "16, 256")
    elsewhere.put(Task(small), (folder / "triton_registers.py").read_text())
    assert elsewhere.passes(SELF_TEST, TRITON_INTERPRET="1").count(": kernel, ") == 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda_registers", "triton_registers"])
def test_gpu_kernels_stand_alone(name: str, elsewhere: Elsewhere) -> None:
    folder = EXAMPLES / "gpu" / "rmsnorm"
    elsewhere.put(Task.from_file(folder / "task.py"), (folder / f"{name}.py").read_text(), target="cuda")
    assert elsewhere.passes(SELF_TEST).count(": kernel, ") == 3


# --- the text --------------------------------------------------------------------------------------------


def test_what_only_a_file_of_its_own_can_have_is_moved(elsewhere: Elsewhere) -> None:
    head = '"""Ünïcode."""\nfrom __future__ import annotations; import os\nif __name__ == "__main__":\n    raise SystemExit(9)'
    text = elsewhere.put(task(), candidate(head=head))
    assert (
        text.index("from __future__ import annotations") < text.index("Ünïcode")
        and "\npass; import os\n" in text
    )
    elsewhere.passes(SELF_TEST)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class ModelNew(:", "the candidate is not Python"),
        ("x = 1", "the candidate defines no class ModelNew"),
        (
            candidate(head="class OptimizedModel: pass"),
            "the candidate defines OptimizedModel, which exported files define themselves",
        ),
        (
            candidate(head="from kernelpro import records"),
            "the candidate imports kernelpro.records: exported files can include only",
        ),
    ],
)
def test_candidates_that_cannot_be_exported(source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        standalone_file(Winner(task(), source, None, {}))


def test_a_task_that_cannot_run_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match="task task: Model raised ZeroDivisionError"):
        standalone_file(Winner(task(init="1 / 0"), candidate(), None, {}))


def test_a_task_that_looks_at_values_is_run_on_the_cpu() -> None:
    body = task("x * 2", "pass").source
    source = body.replace("[torch.randn(16, 8)]", "[torch.randn(int(torch.full((), 16.0)), 8).t()]")
    text = standalone_file(Winner(Task(source), candidate("x"), None, {}))
    assert "('tensor', (8, 16), 'float32', (1, 8))" in text


def test_exported_files_can_be_imported(elsewhere: Elsewhere) -> None:
    text, lines = standalone_file(Winner(task(), candidate(), None, {})), []
    for name in ("pool-1", "1-softmax", "class", "a.b", "tâche-2"):
        file_name = module_file_name(name)
        (elsewhere.folder / file_name).write_text(text, encoding="utf-8")
        lines.append(f"import {file_name.removesuffix('.py')} as exported; exported.OptimizedModel")
    elsewhere.passes("\n".join(lines))


# --- runs ------------------------------------------------------------------------------------------------


def test_the_winner_of_a_run(tmp_path: Path, elsewhere: Elsewhere, quick_judge: QuickJudge) -> None:
    folder = EXAMPLES / "cpu" / "column_cumsum"
    columns = fewer_rows(folder / "task.py")
    config = RunConfig(columns, "cpu", "files:kernels")
    store = RunStore.create(tmp_path / "runs", config, "columns")
    with pytest.raises(BadInput, match="run columns-1 is not finished"):
        select_winner(store)
    store.save_outcome(Outcome("the budget is spent"))
    with pytest.raises(BadInput, match="run columns-1 has nothing to export: no candidate passed"):
        select_winner(store)
    key = store.save_source((folder / "cpp_strips.py").read_text())
    verdict = quick_judge.judge(columns, Candidate.from_file(folder / "cpp_strips.py"))
    wrong = Verdict("step 2", Status.WRONG, "output 0 is off")
    store.save_step(Step(1, 0, "seed", "settled", key, key, "strips", author="files", verdict=verdict))
    store.save_step(Step(2, 1, "improve", "settled", key, key, verdict=wrong))
    store.save_step(Step(3, 1, "improve", "settled", key, key, note="the same source as step 1"))
    store.save_outcome(Outcome("the budget is spent", 1, verdict))
    for number, message in {
        2: "cannot be exported: wrong: output 0 is off",
        3: "not judged .the same source as step 1",
        9: "has no step 9; it has 3",
    }.items():
        with pytest.raises(BadInput, match=message):
            select_winner(store, number)
    assert select_winner(store) == select_winner(store, 1)
    text = standalone_file(select_winner(store))
    said = ast.get_docstring(ast.parse(text)) or ""
    for part in (
        "run: columns-1, started 2",
        "step: 1, by files: strips",
        "verdict: passed",
        "time, candidate: ",
        "torch " + torch.__version__,
    ):
        assert part in said, said
    assert "speed-up over eager_fp32: " in said and "tolerance" in said
    (elsewhere.folder / "kernel.py").write_text(text)
    elsewhere.passes(SELF_TEST)


# --- exported files as input ------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("native", [True, False])
def test_an_exported_file_is_judged_as_the_kernel_in_it(
    native: bool, head: str, elsewhere: Elsewhere
) -> None:
    own = (LAYERNORM / "cpp_fused.py").read_text() if native else candidate()
    text = elsewhere.put(task(), head + own)
    kernel = Candidate.from_file(elsewhere.folder / "kernel.py").source
    assert "_EXPORT" in text and "_EXPORT" not in kernel
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    found = [node for node in ast.parse(kernel).body if isinstance(node, ast.ClassDef)]
    assert [ast.dump(node) for node in found] == [ast.dump(classes["ModelNew"])]
    assert found[-1].lineno == classes["ModelNew"].lineno
    assert kernel.startswith(head)
    compile(kernel, "kernel.py", "exec")


def test_a_module_of_an_exported_file_patches_a_model(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.put(task(), candidate())
    monkeypatch.syspath_prepend(elsewhere.folder)
    monkeypatch.delitem(sys.modules, "kernel", raising=False)
    import kernel  # type: ignore[import-not-found]

    model, x = torch.nn.Sequential(kernel.OptimizedModel._kernelpro_base(2)), torch.randn(16, 8)
    patch = kernelpro.patch(model, {"0": kernel.OptimizedModel(2)}, (x,))
    assert torch.equal(model[0].scale, patch.modules["0"].scale) and patch.stats["0"].kernel == 1, patch


# --- packages and readability ----------------------------------------------------------------------------


def test_an_installable_folder(elsewhere: Elsewhere) -> None:
    winner = Winner(
        fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text(), None, {"target": "cpu"}
    )
    for path, text in package_files(winner, "fast_norm").items():
        file = elsewhere.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert 'name = "fast_norm"' in (elsewhere.folder / "pyproject.toml").read_text()
    assert "from fast_norm import OptimizedModel" in (elsewhere.folder / "README.md").read_text()
    assert (elsewhere.folder / "fast_norm" / "kernel.py").read_text() == winner.source
    said = elsewhere.passes("import fast_norm\nraise SystemExit(fast_norm.self_test())")
    assert said.count(": kernel, relative error") == 3
    (elsewhere.folder / "tests").rename(elsewhere.folder / "checks")
    elsewhere.passes("import runpy, pytest\nraise SystemExit(pytest.main(['-q', 'checks']))")


def test_code_of_pytorch_is_not_called_a_kernel(elsewhere: Elsewhere) -> None:
    problem = replace(task(), name="1_Square")  # as KernelBench names them
    text = elsewhere.put(problem, "# Written by torch.compile of torch 2 for cpu: kernels\n" + candidate())
    assert "1_Square: torch.compile's code, judged by KernelPro" in text
    said = elsewhere.passes(SELF_TEST)
    assert said.count("torch.compile's code, relative error") == 3 and ": kernel," not in said
