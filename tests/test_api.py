"""The Python API as scripts use it: a module with weights of its own, what a file may not do, and what is said then."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import lent
from quantised import Quantised
from quick_judge import QuickJudge

import kernelpro
from kernelpro import api
from kernelpro.api import judging
from kernelpro.api.messages import public
from kernelpro.engine.store import RunStore
from kernelpro.lab.tasks import parameters
from kernelpro.pools.local import LocalPool
from kernelpro.records import BadInput, Candidate, NotScorable, Options, Status, Task

KERNEL = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(64))
        self.register_buffer("weight", torch.zeros(64, 64, dtype=torch.int8))
    def forward(self, x): return x @ self.weight.float() * self.scale
"""
UNGUARDED = """
import torch, kernelpro
from kernelpro.records import Candidate
def double(x): return 2 * x
CANDIDATE = "import torch\\nclass ModelNew(torch.nn.Module):\\n    def forward(self, x): return x + x\\n"
kernelpro.judge(double, Candidate(CANDIDATE), [torch.randn(64, 64)], target="cpu")
"""
SPECTRUM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = torch.nn.Parameter(torch.randn(64, dtype=torch.complex64))
    def forward(self, x): return torch.view_as_real(torch.fft.fft(x) * self.phase)
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
"""


TANH = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x) * x + 1
def get_inputs(): return [torch.randn(512, 512)]
def get_init_inputs(): return []
"""


def test_whole_numbers_are_given_by_name_too(quick_judge: QuickJudge) -> None:
    task = api.load_task(Quantised(), [torch.randn(32, 64)])
    verdict = quick_judge.judge(task, Candidate(KERNEL))
    assert verdict.status is Status.PASSED and verdict.parameters == "by name", verdict.reason


def test_weights_that_no_seed_makes_must_keep_their_names(quick_judge: QuickJudge) -> None:
    task = api.load_task(Quantised(), [torch.randn(32, 64)])
    verdict = quick_judge.judge(task, Candidate(KERNEL.replace("self.scale", "self.gain")))
    assert verdict.status is Status.WRONG and "but some differ: the module has scale [64]" in verdict.reason


def test_who_is_wrong_with_parameters_by_seed_is_told_so(quick_judge: QuickJudge) -> None:
    plain = SPECTRUM.replace(", dtype=torch.complex64", "").replace(
        "torch.view_as_real(torch.fft.fft(x)", "torch.tanh(x"
    )
    source = (
        plain.replace("class Model", "class ModelNew")
        .replace("self.phase", "self.angle")
        .replace("tanh(x", "tanh(2 * x")
    )
    task = Task(plain)
    verdict = quick_judge.judge(task, Candidate(source))
    assert verdict.status is Status.WRONG and "it keeps its constructor's parameters" in verdict.reason
    assert verdict.parameters == "by seed" and any("reference's seed" in note for note in verdict.notes)


def test_complex_parameters_keep_both_their_parts(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(Task(SPECTRUM), Candidate(SPECTRUM.replace("class Model", "class ModelNew")))
    assert verdict.status is Status.PASSED, verdict.reason


def test_what_has_no_name_at_the_top_of_its_file_is_refused() -> None:
    with pytest.raises(BadInput, match="is not defined at the top level of its file"):
        api.load_task(lambda x: x, [torch.randn(4)])


SINCE = """
import torch, kernelpro
from kernelpro.records import BadInput, Candidate
SCALE = 1.0
class Scaled(torch.nn.Module):
    def forward(self, x): return x.tanh() * SCALE
if __name__ == "__main__":
    SCALE = 3.0
    given = Candidate("import torch\\nclass ModelNew(torch.nn.Module):\\n    def forward(self, x): return x.tanh()\\n")
    try:
        kernelpro.judge(Scaled(), given, [torch.randn(64, 64)], target="cpu")
    except BadInput as error:
        print(error)
"""


def test_what_was_changed_after_it_was_defined_is_found_out(tmp_path: Path) -> None:
    """A worker imports the file, and so would verify another function."""
    (tmp_path / "script.py").write_text(SINCE)
    environment = os.environ | {"KERNELPRO_LOCKS": str(tmp_path / "locks")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    told = r"computes something else in a worker than in your process \(\d+% of the elements of output 0 differ\)"
    assert re.search(told, done.stdout), done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: api.load_task(Quantised, [torch.randn(4, 64)]), "Quantised is a class: give an instance"),
        (
            lambda: api.load_task(Quantised(), torch.randn(4, 64)),
            "inputs: give a list of the arguments of a call, not a Tensor",
        ),
        (
            lambda: api.load_task(Quantised()),
            r"missing a required argument: 'x'; give the arguments of forward\(x\)",
        ),
        (
            lambda: api.load_task(Quantised(), [torch.randn(4, 64), 2]),
            r"inputs: too many positional arguments; give the arguments of forward\(x\)",
        ),
        (
            lambda: api.judge(Quantised(), [], [torch.randn(4, 64)], target="gpu"),
            "target 'gpu': use 'cuda' or 'cpu'",
        ),  # type: ignore[arg-type]
        (
            lambda: api.judge(Quantised(), None, [torch.randn(4, 64)]),  # type: ignore[arg-type]
            "a candidate is a path or a Candidate, not a NoneType",
        ),
        (
            lambda: api.load_task(Quantised(), [torch.randn(4, 64)], precision="fp8"),  # type: ignore[arg-type]
            "precision 'fp8': use 'fp32' or 'tf32' or 'native'",
        ),
        (
            lambda: api.optimize(Quantised(), [torch.randn(4, 64)], candidates=-1, author="playbook"),
            "candidates -1: give a whole number from 0 on",
        ),
        (
            lambda: api.optimize(Quantised(), [torch.randn(4, 64)], objective="cheap", author="playbook"),  # type: ignore[arg-type]
            "objective 'cheap': use speed, energy-at-speed, edp",
        ),
        (
            lambda: api.optimize(Quantised(), author=7),  # type: ignore[arg-type]
            "an author and a model are given by name, not as a int",
        ),
        (
            lambda: api.judge(Quantised(), Candidate(KERNEL), [torch.randn(4, 64)], init_inputs=[Path()]),
            "a PosixPath cannot be an input or output",
        ),
    ],
)
def test_what_is_given_wrongly_is_one_line(given: Any, words: str, local_pool: LocalPool) -> None:
    with lent(local_pool), pytest.raises(BadInput, match=words):
        given()


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("--author nobody: use playbook", 'author="nobody": use playbook'),
        ("leave out --author, or --model and --role", "leave out author, or model and roles"),
        ("if that is dropout, use `--mode eval`", 'if that is dropout, use mode="eval"'),
        ("set it with --price m=INPUT/OUTPUT (dollars", 'set it with prices={"m": "INPUT/OUTPUT"} (dollars'),
        ("or --model inbox:DIR to answer", 'or model="inbox:DIR" to answer'),
        ("--runs-dir /tmp/x: this is a file", 'runs_dir="/tmp/x": this is a file'),
        ("--policy beam:width=x: 'width=x' is not", "policy=\"beam:width=x\": 'width=x' is not"),
        ("--pool moon: unknown pool", 'pool="moon": unknown pool'),
        ("pip install --no-deps x", "pip install --no-deps x"),
    ],
)
def test_messages_name_the_parameters_of_python(message: str, words: str) -> None:
    assert api.in_python(message) == words


def test_errors_keep_their_attributes_and_their_words() -> None:
    @public
    def fail() -> None:
        raise NotScorable("random; use `--mode eval`")

    with pytest.raises(NotScorable) as raised:
        fail()
    assert str(raised.value) == 'this task cannot be scored: random; use mode="eval"'
    assert raised.value.reason == "random; use `--mode eval`"


def test_an_author_that_does_not_exist_is_named_as_a_parameter(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TANH)
    with pytest.raises(
        BadInput, match=r'^author="nobody": use playbook or files:DIR; choose an LLM with model='
    ):
        api.optimize(tmp_path / "task.py", author="nobody")


@pytest.mark.parametrize(
    ("function", "keyword", "name"),
    [
        (kernelpro.optimize, "buget", "budget"),
        (kernelpro.judge, "optoins", "options"),
        (kernelpro.profile, "targt", "target"),
        (kernelpro.patch, "tolerence", "tolerance"),
        (kernelpro.export, "pakage", "package"),
    ],
)
def test_an_unknown_keyword_gets_the_name_that_was_meant(function: Any, keyword: str, name: str) -> None:
    message = (
        rf"{function.__name__}\(\) got an unexpected keyword argument '{keyword}'. Did you mean '{name}'\?"
    )
    with pytest.raises(TypeError, match=message):
        function(**{keyword: 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qqqq'"):
        function(qqqq=1)
    assert name in inspect.signature(function).parameters and function.__doc__


def test_public_names_are_listed_before_they_are_loaded() -> None:
    assert {*kernelpro.__all__} <= {*dir(kernelpro)}


def test_one_baseline_need_not_be_a_list() -> None:
    assert "max_autotune" in judging.add_baselines(Options(), "max_autotune").baselines
    with pytest.raises(BadInput, match="baseline cublas: not one of"):
        judging.add_baselines(Options(), "cublas")


def test_one_language_need_not_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TANH)
    how: dict[str, Any] = {"target": "cpu", "author": "playbook", "runs_dir": tmp_path / "runs"}
    with pytest.raises(BadInput, match=r"^language triton: kernels for cpu are written in cpp"):
        api.optimize(tmp_path / "task.py", languages="triton", **how)


def test_tied_weights_fit_one_name_or_both() -> None:
    given = Tied().state_dict()
    one = torch.nn.Module()
    one.first = torch.nn.Linear(64, 64)
    assert (
        parameters.load_reference_state(one, given)
        == parameters.load_reference_state(Tied(), given)
        == "by name"
    )
    apart = {name: tensor.clone() for name, tensor in given.items()}
    assert parameters.load_reference_state(one, apart) == "by seed"


def test_a_script_without_a_guard_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = os.environ | {"TMPDIR": str(tmp_path), "KERNELPRO_LOCKS": str(tmp_path / "locks")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode and "put that under if __name__ == '__main__'" in done.stderr
    assert not list(tmp_path.glob("kernelpro-*"))


PROJECT = {
    "blocks/__init__.py": "",
    "blocks/parts.py": "SHIFT = 3.0",
    "blocks/net.py": """
import torch
from .parts import SHIFT
class Net(torch.nn.Module):
    def forward(self, x): return torch.tanh(x) + SHIFT
""",
    "script.py": """
import torch, kernelpro
from blocks.net import Net
from kernelpro.records import Candidate, Options
CANDIDATE = "import torch\\n%sclass ModelNew(torch.nn.Module):\\n    def forward(self, x): return x.tanh() + 3.0\\n"
if __name__ == "__main__":
    made = [Candidate(CANDIDATE % more) for more in ("", "import blocks\\n")]
    eager = Options(effort="quick", baselines=("eager_fp32",))
    for verdict in kernelpro.judge(Net(), made, [torch.randn(64, 64)], target="cpu", options=eager):
        print(verdict.status.value, verdict.reason)
""",
}


def test_a_module_of_a_project_beside_the_script_is_found_and_not_by_candidates(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = os.environ | {"KERNELPRO_LOCKS": str(tmp_path / "locks")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        cwd="/",
    )
    good, bad = done.stdout.splitlines()[:2]
    assert good.startswith("passed"), done.stdout + done.stderr
    assert "No module named 'blocks'" in bad


@pytest.mark.long  # a whole run; suites/test_bench.py has one by the command, and what goes wrong from Python is below
def test_a_run_from_python_tells_what_goes_on_and_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.py").write_text(TANH)
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "kernel.py").write_text(
        TANH.replace("class Model", "class ModelNew").replace("x + 1", "x + 1.0")
    )
    how: dict[str, Any] = {
        "target": "cpu",
        "author": f"files:{tmp_path / 'written'}",
        "compile_seed": False,
        "candidates": 1,
    }
    how |= {"runs_dir": tmp_path / "runs", "options": Options(effort="quick", baselines=("eager_fp32",))}
    found = api.optimize(tmp_path / "task.py", **how)
    author, start, baselines, step, final, winner, *more = capsys.readouterr().err.splitlines()
    assert start.startswith(f"run {found.run.name}: ") and start.endswith(
        "; probing the task and measuring its baselines"
    )
    assert final == "step 1: judging again at full length"
    assert author.startswith("author: files:") and baselines.startswith("baselines: eager_fp32 ")
    assert step.startswith("step 1 (seed, by ") and " step 1 by kernel.py, " in winner
    assert found.speedup == found.speedups["eager_fp32"].value
    assert str(found) == "\n".join([winner, *more])
    assert repr(found) == f"OptimizationResult({winner}; run {found.run})"
    assert (
        found.verdict
        and found.verdict.status is Status.PASSED
        and found.source
        and "class ModelNew" in found.source
    )
    assert more[0].startswith("  over each baseline: eager_fp32 ") and more[-1] == f"  report: {found.report}"
    assert found.report == found.run / "report.html" and "</html>" in found.report.read_text()
    told: list[str] = []
    again = api.optimize(tmp_path / "task.py", on_event=lambda event: told.append(event.kind), **how)
    assert again.outcome == found.outcome and not told and not capsys.readouterr().err, "it has ended"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "torch.fft.fft(x)",
            "torch.fft.fft(x[:, :7])",
            "the reference raised RuntimeError: The size of tensor",
        ),
        # the same by the command: test_report_at_the_end.py
        pytest.param("* self.phase", "* 0", "this task cannot be scored", marks=pytest.mark.long),
    ],
)
def test_a_task_that_does_not_run_or_cannot_be_scored_leaves_no_run(
    old: str, new: str, told: str, tmp_path: Path, local_pool: LocalPool
) -> None:
    """Asked from within an event loop, as a notebook's cells are."""
    path, home = tmp_path / "task.py", tmp_path / "runs"

    async def ask() -> str:
        with pytest.raises(BadInput) as refused:
            api.optimize(path, target="cpu", author="playbook", runs_dir=home)
        return str(refused.value)

    path.write_text(SPECTRUM.replace(old, new))
    with lent(local_pool):
        assert told in asyncio.run(ask()) and not list(home.iterdir())


NOTEBOOK = """
import asyncio, sys, kernelpro
async def cell():
    tell = lambda event: print(event.kind, flush=True)
    kernelpro.optimize(sys.argv[1], target="cpu", author="playbook", runs_dir=sys.argv[2], on_event=tell)
if __name__ == "__main__":
    asyncio.new_event_loop().run_until_complete(cell())
"""


def test_an_interrupt_ends_a_run_in_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(NOTEBOOK)
    (tmp_path / "slow.py").write_text(
        SPECTRUM.replace("def get_inputs():", "import time\ndef get_inputs(): time.sleep(600);")
    )
    command = [sys.executable, str(tmp_path / "cell.py"), str(tmp_path / "slow.py"), str(tmp_path / "runs")]
    environment = os.environ | {"TMPDIR": str(tmp_path), "KERNELPRO_LOCKS": str(tmp_path / "locks")}
    piped: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment,
    }
    cell = subprocess.Popen(command, preexec_fn=interruptible, **piped)
    assert cell.stdout and [cell.stdout.readline() for _ in range(3)] == ["note\n", "started\n", "job\n"]
    cell.send_signal(signal.SIGINT)
    _, said = cell.communicate(timeout=120)
    assert cell.returncode and said.rstrip().endswith("KeyboardInterrupt")
    assert RunStore.open(tmp_path / "runs", "slow-1").state() == "stopped" and not list(
        tmp_path.glob("kernelpro-*")
    )


def interruptible() -> None:
    """Whatever our own shell thinks of the keyboard."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


WAITS = """
from kernelpro.lab.machine import Device
from kernelpro.pools.process import WorkerProcess
from kernelpro.records import Job, Task
worker = WorkerProcess(Device(None), "auto")
worker.send(Job("1", "probe", Task("import time\\ntime.sleep(600)"), target="cpu"))
print(worker._process.pid, flush=True)
for record in worker.records():
    print(record, flush=True)
"""


def test_a_worker_whose_master_is_killed_does_not_stay_at_a_task_that_hangs(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "KERNELPRO_LOCKS": str(tmp_path / "locks")}
    master = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert master.stdout
    worker = int(master.stdout.readline())
    assert "loading the reference" in master.stdout.readline()
    os.kill(master.pid, signal.SIGKILL)
    master.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    assert not list(tmp_path.glob("kernelpro-*"))
