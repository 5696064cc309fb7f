"""Several workers in one pool: who gets what, one at a time on a device, and what happens to the sick."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
from spooling import QUICK, TASK, judging

from kernelpro.lab.exclusive import exclusive
from kernelpro.lab.machine import Device, Gpu
from kernelpro.pools import local, process
from kernelpro.pools.factory import create_pool
from kernelpro.records import BadInput, BuildData, Candidate, Job, Options, Progress, Status, Target, Task

H200, A100 = Device(Gpu("GPU-1", "NVIDIA H200")), Device(Gpu("GPU-2", "NVIDIA A100"))
TWIN = Device(Gpu("GPU-3", "NVIDIA H200"))
EVAL = replace(TASK, name="relu, eval", mode="eval")
MEASURING = ("measuring the device", "calibrating the baselines", "verifying", "timing")


@pytest.mark.together
@pytest.mark.long  # the lock itself, among processes, below
def test_two_workers_judge_one_at_a_time() -> None:
    """Both are at work, and never both on the device."""
    stages: list[tuple[str, str]] = []

    def progress(step: Progress) -> None:
        stages.append((step.job, step.stage))

    with create_pool("local:2") as both:
        jobs = [judging("2", name) for name in "ab"]
        other = [Job(name, "judge", EVAL, judging("2").candidate, "cpu", QUICK) for name in "xy"]
        answers = [both.submit(job, progress) for job in (jobs[0], other[0], jobs[1], other[1])]
        verdicts = [answer.result(timeout=240).verdict for answer in answers]
    assert [v.status for v in verdicts if v] == [Status.PASSED] * 4
    order = [("ab" if job in "ab" else "xy") for job, stage in stages if stage in MEASURING]
    assert set(order) == {"ab", "xy"}, "each worker had a task of its own"
    assert any(stage.startswith("waiting: another process") for _, stage in stages), "waiting is shown"
    for job in "abxy":
        mine = [index for index, (who, stage) in enumerate(stages) if who == job and stage in MEASURING]
        between = [who for who, stage in stages[mine[0] : mine[-1]] if stage in MEASURING]
        assert set(between) == {job}, f"{job} was not alone on the device"


HOLDER = """
import time
from kernelpro.lab.exclusive import exclusive
with exclusive("test-device", print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_dies_with_its_holder() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    heard: list[str] = []

    def kill(text: str) -> None:
        heard.append(text)
        holder.kill()

    with exclusive("test-device", kill):
        assert heard == ["waiting: another process is timing on this device"]
    holder.wait()


GREEDY = """
import time
from kernelpro.lab.exclusive import exclusive
while True:
    with exclusive("test-device", lambda text: None):
        print("held", flush=True)
        time.sleep(0.05)
"""


def test_a_process_with_one_job_after_another_lets_others_in() -> None:
    greedy = subprocess.Popen([sys.executable, "-c", GREEDY], stdout=subprocess.PIPE, text=True)
    try:
        assert greedy.stdout and greedy.stdout.readline() == "held\n"
        for _ in range(20):
            with exclusive("test-device", lambda text: None):
                pass
    finally:
        greedy.kill()
    assert len(greedy.stdout.readlines()) <= 60, "it had its turn, and so had we"


# --- scheduling, with workers that only say what they were told ------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", [sys.executable, str(Path(__file__).with_name("idle_worker.py"))])


def wish(text: str, target: Target = "cuda", options: Options = QUICK) -> Job:
    return Job(text, "judge", TASK, Candidate(text, text), target, options)


def test_a_task_is_not_left_while_a_run_works_on_it(stand_in: None) -> None:
    """Two runs, one device: each asks again when it has its answer, and none has to be made warm twice."""
    done: list[str] = []

    def run(task: Task, here: local.LocalPool) -> None:
        for kind, number in (("study", 1), ("judge", 2), ("judge", 3)):
            job = Job(f"{task.name} {number}", kind, task, Candidate("work", "work"), "cuda", QUICK)  # type: ignore[arg-type]
            here.submit(job).result(timeout=60)
            done.append(job.id)

    with local.LocalPool(devices=[H200]) as here, ThreadPoolExecutor() as clients:
        list(clients.map(run, (TASK, EVAL), (here, here)))
    names = [job.rpartition(" ")[0] for job in done]
    assert names == [names[0]] * 3 + [names[-1]] * 3 and set(names) == {TASK.name, EVAL.name}


def test_a_sick_device_is_reported_and_left_alone(stand_in: None) -> None:
    heard: list[str] = []
    with local.LocalPool(devices=[H200], warn=heard.append) as here:
        broken, behind = here.submit(wish("break the device")), here.submit(wish("work"))
        verdict = broken.result(timeout=30).verdict
        assert (
            verdict and verdict.status is Status.CRASHED and "GPU-1 failed its health check" in verdict.reason
        )
        with pytest.raises(
            local.DeviceFailed,
            match=r"every device for this job failed its health check \(NVIDIA H200 GPU-1\)",
        ):
            behind.result(timeout=30)
        assert here.failed and heard == ["GPU-1 failed its health check and is not used any more"]


def test_a_candidate_costs_one_device_and_another_does_the_rest(stand_in: None) -> None:
    with local.LocalPool(devices=[H200, TWIN]) as here:
        answers = [here.submit(wish(text)) for text in ("work", "break the device", "more work")]
        assert answers[0].result(timeout=30).data == BuildData(reason="work")
        verdict = answers[1].result(timeout=30).verdict
        assert verdict and verdict.status is Status.CRASHED
        assert answers[2].result(timeout=30).data == BuildData(reason="more work")
        assert [slot.failed for slot in here._workers].count(True) == 1


def test_a_job_that_was_cancelled_is_not_refused_as_well(stand_in: None) -> None:
    with local.LocalPool(devices=[H200]) as here:
        here.submit(wish("break the device"))
        late = [here.submit(wish("work")) for _ in range(local.MAX_SENT)]
        assert late[-1].cancel()
        for answer in late[:-1]:
            with pytest.raises(local.DeviceFailed):
                answer.result(timeout=30)
        with pytest.raises(local.DeviceFailed):
            here.submit(wish("work")).result(timeout=30)


def test_a_hung_worker_is_replaced(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_SLACK_SECONDS", 1.0)
    brief = Options(baselines=(), build_timeout=0.1, call_timeout=0.01)
    with local.LocalPool(devices=[H200]) as here:
        hung, behind = here.submit(wish("hang", options=brief)), here.submit(wish("work", options=brief))
        verdict = hung.result(timeout=60).verdict
        assert verdict and verdict.status is Status.CRASHED and "it sent nothing for" in verdict.reason
        assert behind.result(timeout=30).data == BuildData(reason="work")


@pytest.mark.parametrize(
    ("text", "reason", "cause"),
    [
        ("prepare and exit", "exit code 3", "either the reference ends its process, or this machine has too"),
        ("prepare and hang", "it sent nothing for", "the reference or get_inputs may never end"),
    ],
)
def test_a_task_that_ends_the_worker_is_not_blamed_on_the_candidate(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, text: str, reason: str, cause: str
) -> None:
    monkeypatch.setattr(local, "_SLACK_SECONDS", 1.0)
    brief = Options(baselines=(), build_timeout=0.1, call_timeout=0.01)
    with local.LocalPool(devices=[H200]) as here:
        result = here.submit(wish(text, options=brief)).result(timeout=60)
    assert result.verdict is None and result.error
    assert result.error.startswith(f"the worker died while it prepared task {TASK.name} ({reason}")
    assert cause in result.error


def test_a_task_stays_on_one_kind_of_hardware(stand_in: None) -> None:
    with local.LocalPool(devices=[H200, A100]) as here:
        answers = [here.submit(wish(f"{n}")) for n in range(12)]
        assert [a.result(timeout=30).data for a in answers] == [BuildData(reason=f"{n}") for n in range(12)]
        used = [slot.device for slot in here._workers if slot.process]
    assert len(used) == 1


def test_tasks_spread_over_devices(stand_in: None) -> None:
    other = Job("other", "judge", EVAL, Candidate("other"), "cuda", QUICK)
    with local.LocalPool(devices=[H200, TWIN]) as here:
        for answer in [here.submit(wish("1")), here.submit(other), here.submit(wish("2"))]:
            answer.result(timeout=30)
        assert {slot.task for slot in here._workers} == {TASK.id, EVAL.id}


def test_a_small_task_does_not_wait_for_all_of_a_large_one(stand_in: None, tmp_path: Path) -> None:
    order: list[str] = []
    with local.LocalPool(devices=[H200]) as here:
        large = [
            here.submit(wish(text))
            for text in (f"wait for {tmp_path / 'all'}", *(f"{n}" for n in range(1, 120)))
        ]
        small = here.submit(Job("small", "judge", EVAL, Candidate("small"), "cuda", QUICK))
        for answer in [*large, small]:
            answer.add_done_callback(lambda future: order.append(future.result().job))
        (tmp_path / "all").touch()
        for answer in [*large, small]:
            answer.result(timeout=30)
    assert order.index("small") <= local.FIRST_TURN, "after one turn"
    order.remove("small")
    assert order[1:] == [f"{n}" for n in range(1, 120)]


def test_tasks_of_a_size_are_made_warm_once(stand_in: None) -> None:
    tasks: list[str] = []
    with local.LocalPool(devices=[H200]) as here:
        jobs = [
            Job(f"{n}", "judge", task, Candidate(f"{n}"), "cuda", QUICK)
            for task in (TASK, EVAL)
            for n in range(30)
        ]
        answers = {here.submit(job): job.task.id for job in jobs if job.task}
        for answer in answers:
            answer.add_done_callback(lambda future: tasks.append(answers[future]))
        for answer in answers:
            answer.result(timeout=30)
    assert tasks == [TASK.id] * 30 + [EVAL.id] * 30


@pytest.mark.parametrize("devices", [[H200], [H200, A100]])
def test_jobs_that_were_not_sent_can_be_cancelled(stand_in: None, devices: list[Device]) -> None:
    with local.LocalPool(devices=devices) as here:
        first = [here.submit(wish("hang")) for _ in range(8)]
        late = [here.submit(wish("work")) for _ in range(50)]
        assert here.pending_jobs == 58 and not first[0].cancel()
        assert all(answer.cancel() for answer in late) and here.pending_jobs == 8


def test_match_names_what_there_is() -> None:
    with pytest.raises(BadInput, match=r"--gpu-name abacus: no such device on this machine; it has ."):
        local.local_devices("abacus")
    assert len(local.local_devices(workers=3)) == 3


ENDLESS = """
import time
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x

def get_inputs():
    open({started!r}, "w").close()
    time.sleep(60)

def get_init_inputs():
    return []
"""


@pytest.mark.together
def test_a_worker_that_is_terminated_blames_nobody(tmp_path: Path) -> None:
    """A batch system sends SIGTERM to all processes of a job. The task did not call sys.exit."""
    started = tmp_path / "started"
    job = Job(
        "1", "judge", Task(ENDLESS.format(started=str(started)), "endless"), judging("2").candidate, "cpu"
    )
    worker = subprocess.Popen(
        [sys.executable, "-m", "kernelpro.lab.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin and worker.stdout
    worker.stdin.write(json.dumps(job.to_json()) + "\n")
    worker.stdin.flush()
    while not started.exists() and worker.poll() is None:
        time.sleep(0.02)
    worker.terminate()
    kinds = [json.loads(line)["type"] for line in worker.stdout]
    assert worker.wait(60) == 143 and "result" not in kinds


def test_what_is_built_ahead_is_built_by_the_next_worker_if_one_dies(stand_in: None, tmp_path: Path) -> None:
    built: Queue[str] = Queue()
    with local.LocalPool(devices=[H200]) as here:
        for name in (f"exit unless {tmp_path / 'died'}", "work"):
            task = replace(TASK, name=name, source=f"# {name}")
            here.build_ahead(task, "cuda", QUICK, (Candidate(name),), partial(built.put, name))
        assert here.submit(wish("work")).result(timeout=30).data
        assert {built.get(timeout=30).split()[0] for _ in range(2)} == {"exit", "work"}
    assert (tmp_path / "died").exists()


def test_what_kills_every_worker_that_builds_it_ahead_is_given_up(stand_in: None) -> None:
    built: Queue[str] = Queue()
    with local.LocalPool(devices=[H200]) as here:
        here.build_ahead(TASK, "cuda", QUICK, (Candidate("prepare and exit"),), partial(built.put, "ended"))
        while built.empty():
            assert here.submit(wish("work")).result(timeout=30)
        assert here.submit(wish("work")).result(timeout=30).data == BuildData(reason="work")
    assert built.get() == "ended" and built.empty()


def test_nothing_to_build_ahead_is_built_at_once(stand_in: None) -> None:
    """Without candidates, and on a CPU, where compilers would disturb measurements."""
    built: list[str] = []
    with local.LocalPool(devices=[H200]) as here:
        here.build_ahead(TASK, "cuda", QUICK, (), partial(built.append, "none"))
        here.build_ahead(TASK, "cpu", QUICK, (Candidate("work"),), partial(built.append, "cpu"))
    assert built == ["none", "cpu"]


def test_the_worker_of_an_abandoned_task_is_replaced_and_its_other_jobs_run(stand_in: None) -> None:
    with local.LocalPool(devices=[H200]) as here:
        started = threading.Event()
        endless = here.submit(wish("prepare and hang"), lambda _: started.set())
        behind = here.submit(wish("work"))
        other = here.submit(Job("other", "judge", EVAL, Candidate("work", "work"), "cuda", QUICK))
        assert started.wait(30)
        here.abandon_task(EVAL)
        assert not endless.done(), "the worker has no job of this task yet"
        here.abandon_task(TASK)
        for job in (endless, behind):
            verdict = job.result(timeout=30).verdict
            assert verdict and verdict.reason == "its task was abandoned"
        assert other.result(timeout=30).data == BuildData(reason="work")
