"""Outputs must be nested as the reference's are; and a task that ends its process is bad input."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec, check_structure, describe_structure
from kernelpro.records import Candidate, Job, Options, Status, Task

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        y, z = torch.tanh(x), x * 2
        return {returns}
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
{rest}
"""
Pair = namedtuple("Pair", "first second")


def task(returns: str = "y", rest: str = "") -> Task:
    return Task(TASK.format(returns=returns, rest=rest), "nested")


def candidate(returns: str) -> Candidate:
    return Candidate(TASK.replace("Model", "ModelNew").format(returns=returns, rest=""))


@pytest.mark.parametrize(
    ("value", "structure"),
    [
        (torch.zeros(1), "tensor"),
        ([torch.zeros(1)], "[tensor]"),
        ((torch.zeros(1),), "(tensor,)"),
        (Pair(torch.zeros(1), 3.0), "(tensor, 3.0)"),
        ({"a": torch.zeros(1), "b": [torch.zeros(1), None]}, "{a: tensor, b: [tensor, None]}"),
        ((torch.zeros(1), object()), "(tensor, object)"),
    ],
)
def test_the_structure_of_outputs_as_text(value: object, structure: str) -> None:
    assert describe_structure(value) == structure


@pytest.mark.parametrize("claim", [None, 7, ["tensor"]])
def test_a_structure_that_is_no_text_is_forged(claim: object) -> None:
    with pytest.raises(CandidateRejected, match="forged"):
        check_structure(claim, OutputSpec((((1,), torch.float32),)))


@pytest.mark.parametrize(
    ("expected", "returned", "reason"),
    [
        ("y", "[y]", "returns [tensor], should return tensor"),
        ("y", "(y,)", "returns (tensor,), should return tensor"),
        ("(y, z)", "[y, z]", "returns [tensor, tensor], should return (tensor, tensor)"),
        (
            "{'y': y, 'z': z}",
            "{'y': y, 'w': z}",
            "returns {y: tensor, w: tensor}, should return {y: tensor, z: tensor}",
        ),
        ("(y, z)", "y", "returns 1 tensors, should return 2"),
        ("(y, x.shape[0])", "(y, 63)", "returns (tensor, 63), should return (tensor, 64)"),
        ("(y, x.clone())", "(y, x)", "returns output 1 in the memory of an input; the reference does not"),
        ("y", "y.to_sparse()", "output 0 has layout sparse_coo, should be dense"),
        ("y", "y.to('meta')", "output 0 is on meta, should be on cpu"),
        ("y", "y[:1].expand(64, 64)", "output 0 is expanded: 256 bytes of memory for 16384 bytes"),
    ],
)
def test_outputs_in_another_structure_are_wrong(
    quick_judge: QuickJudge, expected: str, returned: str, reason: str
) -> None:
    verdict = quick_judge.judge(task(expected), candidate(returned))
    assert verdict.status is Status.WRONG and reason in verdict.reason, verdict.reason


@pytest.mark.parametrize(
    "returns",
    [
        "[y]",
        pytest.param("(y, z)", marks=pytest.mark.long),
        "{'y': y, 'z': [x.view(-1), x.dim(), 0.5, None]}",
    ],
)
def test_outputs_in_the_same_structure_pass(quick_judge: QuickJudge, returns: str) -> None:
    verdict = quick_judge.judge(task(returns), candidate(returns))
    assert verdict.status is Status.PASSED, verdict.reason


def test_an_output_may_be_expanded_where_the_reference_expands_it(quick_judge: QuickJudge) -> None:
    returns = "y[:1].expand(64, 64)"
    verdict = quick_judge.judge(task(returns), candidate(returns))
    assert verdict.status is Status.PASSED, verdict.reason


def test_other_strides_are_noted(quick_judge: QuickJudge) -> None:
    other, same = (quick_judge.judge(task(), candidate(y)) for y in ("y.t().contiguous().t()", "y"))
    assert other.status is same.status is Status.PASSED, other.reason
    assert ["output 0 has other strides" in " ".join(verdict.notes) for verdict in (other, same)] == [1, 0]


def test_integers_that_never_change_are_noted(quick_judge: QuickJudge) -> None:
    masked = (
        "class Model(torch.nn.Module):\n    def forward(self, x, keep):\n        return x.cumsum(1) * keep\n"
    )
    inputs = "def get_inputs(): return [torch.randn(64, 64), torch.ones(64, 64, dtype=torch.bool)]\n"
    source = f"import torch\n{masked}{inputs}"
    ignores = source.replace("Model", "ModelNew").replace(" * keep", "")
    verdict = quick_judge.judge(Task(source, "masked"), Candidate(ignores))
    assert "input 1 has the same values in every call: a kernel may rely on them" in verdict.notes


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("torch.randn(64, 64)", "get_inputs returned a Tensor; return a list of the arguments of forward"),
        ("None", "get_inputs returned a NoneType; return a list of the arguments of forward"),
        ("[torch.empty(64, 64, device='meta')]", "input 0 is not a dense tensor with data"),
        ("[torch.eye(64).to_sparse()]", "input 0 is not a dense tensor with data"),
    ],
)
def test_inputs_that_no_kernel_can_get_are_bad_input(worker: JobRunner, inputs: str, words: str) -> None:
    broken = task(rest=f"def get_inputs(): return {inputs}")
    options = Options(effort="quick", baselines=("eager_fp32",))
    result = worker.run(Job("test", "judge", broken, candidate("y"), "cpu", options))
    assert result.verdict is None and words in result.error


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (task(rest="import sys; sys.exit(3)"), "task nested: importing it called sys.exit(3)"),
        (task(rest="def get_inputs(): exit('no')"), "task nested: get_inputs called sys.exit(no)"),
        (task("y if exit(4) else z"), "task nested: the reference called sys.exit(4)"),
        (
            task("torch.fft.fft(y)"),
            "task nested: output 0 is torch.complex64, and complex numbers cannot be compared: "
            "return torch.view_as_real of it",
        ),
        (task("(y, int((x > 0).sum()))"), "for others: return such numbers as tensors"),
        (
            task(rest="def get_inputs(): return [torch.randn(int(torch.randint(32, 64, ())), 64)]"),
            "get_inputs returns other shapes or other numbers with another seed",
        ),
    ],
)
def test_a_task_that_cannot_be_judged_is_bad_input(worker: JobRunner, broken: Task, words: str) -> None:
    options = Options(effort="quick", baselines=("eager_fp32",))
    result = worker.run(Job("test", "judge", broken, candidate("y"), "cpu", options))
    assert result.verdict is None and words in result.error
