"""The worker as a process of its own: JSON lines in, JSON lines out, whatever comes in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BAD = Path(__file__).parents[1] / "bad"


def test_every_kind_of_job_is_answered_in_order() -> None:
    task = {"source": (BAD / "task.py").read_text(), "name": "tanh"}
    failing = {"source": task["source"].replace("return", "raise ValueError; return", 1), "name": "failing"}
    after_three = "CALLS.append(x)\n        if len(CALLS) > 3: raise torch.OutOfMemoryError\n        return"
    large = {"source": "CALLS = []\n" + task["source"].replace("return", after_three, 1), "name": "large"}
    broken = {"source": (BAD / "compiler_error.py").read_text()}
    options = {"effort": "quick", "baselines": ["eager_fp32"]}
    lines: list[Any] = [
        {"id": "e", "kind": "environment", "target": "cpu"},
        {"id": "b", "kind": "build", "candidate": broken, "target": "cpu"},
        {"id": "p", "kind": "probe", "task": task, "target": "cpu", "options": options},
        {"id": "j", "kind": "judge", "task": task, "candidate": broken, "target": "cpu", "options": options},
        {"id": "n", "kind": "judge", "task": task, "target": "cpu", "options": options},
        {"id": "t", "kind": "probe", "target": "cpu"},
        {"id": "r", "kind": "probe", "task": failing, "target": "cpu", "options": options},
        {"id": "s", "kind": "study", "task": failing, "target": "cpu", "options": options},
        {"id": "m", "kind": "probe", "task": large, "target": "cpu", "options": options},
        {"id": "c", "kind": "compile", "task": task, "target": "cpu"},
        {"id": "a", "kind": "compile", "task": task, "candidates": [broken, broken], "target": "cpu"},
        {"id": "strange", "kind": "nonsense", "task": task, "target": "cpu"},
        {"id": "again", "kind": "probe", "task": failing, "target": "cpu", "options": options},
    ]
    text = "not json\n" + "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "kernelpro.lab.worker"],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    results = {answer["job"]: answer for answer in answers if answer["type"] == "result"}
    assert "is not a job" in results[""]["error"]
    assert results["e"]["data"]["environment"]["torch"] and results["e"]["data"]["sandbox"]
    assert results["m"]["error"].startswith("task large: the device has too little memory")
    assert results["b"]["data"]["failure"] == "build_failed"
    assert results["p"]["data"]["scorable"] is True and results["p"]["data"]["tolerance"]["as given"] > 0
    assert results["p"]["device_seconds"] > 0
    assert (
        results["j"]["verdict"]["status"] == "build_failed"
        and "undeclared" in results["j"]["verdict"]["reason"]
    )
    assert "unknown kind 'nonsense'" in results["strange"]["error"]
    assert "needs a candidate" in results["n"]["error"] and "needs a task" in results["t"]["error"]
    assert all("ValueError" in results[name]["error"] for name in ("r", "s", "again")), (
        "a broken task, however often"
    )
    assert any(answer["type"] == "progress" for answer in answers)
    assert "c" not in results, "references are compiled ahead for GPUs only"
    assert results["a"]["error"] is None, "a failed build also ends"


def test_without_torch_every_job_is_told_what_is_missing() -> None:
    source = Path(__file__).parents[2] / "src"
    code = f"import sys; sys.path.insert(0, {str(source)!r}); from kernelpro.lab.worker import main; main()"
    jobs = "".join(
        json.dumps({"id": name, "kind": "environment", "target": "cpu"}) + "\n" for name in ("a", "b")
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], input=jobs, capture_output=True, text=True, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["job"] for answer in answers] == ["a", "b"] and not done.stderr
    assert all("has no torch" in answer["error"] for answer in answers)


def test_where_nobody_reads_the_results_it_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "kernelpro.lab.worker"]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert worker.stdin and worker.stdout and worker.stderr
    worker.stdout.close()
    worker.stdin.write(json.dumps({"id": "e", "kind": "environment", "target": "cpu"}) + "\n")
    worker.stdin.close()
    assert worker.stderr.read() == "" and worker.wait(60) == 0
