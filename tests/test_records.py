from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

from kernelpro import api
from kernelpro.records import (
    BadInput,
    Candidate,
    Interval,
    Job,
    Limits,
    Options,
    RunConfig,
    Status,
    Task,
    Verdict,
)


def passed(**changes: object) -> Verdict:
    ratio = Interval(2.0, 1.9, 2.1)
    fields: dict[str, object] = {
        "times": {"candidate": ratio},
        "speedup": {"eager_fp32": ratio},
        "faster": "yes",
    }
    return Verdict("a.py", Status.PASSED, "correct", **(fields | changes))  # type: ignore[arg-type]


def test_a_job_survives_json() -> None:
    job = Job(
        "7",
        "judge",
        Task("x = 1", precision="tf32"),
        Candidate("y = 2"),
        "cpu",
        Options(disabled_tripwires=("gc",)),
    )
    assert Job.from_json(json.loads(job.dumps())) == job


def test_a_verdict_survives_json() -> None:
    verdict = passed(notes=("one",))
    assert Verdict.from_json(json.loads(verdict.dumps())) == verdict


def test_a_verdict_cannot_contradict_itself() -> None:
    with pytest.raises(ValueError, match="cannot carry times"):
        Verdict("a.py", Status.WRONG, "off", times={"candidate": Interval(1, 1, 1)})
    with pytest.raises(ValueError, match="must carry times"):
        passed(times={})
    with pytest.raises(ValueError, match="must state its reason"):
        Verdict("a.py", Status.WRONG, "")


def test_a_verdict_knows_how_near_it_is_to_the_floor() -> None:
    assert passed(floor_ms=1.0).of_floor == 0.5
    assert passed().of_floor is None and Verdict("a.py", Status.WRONG, "off", floor_ms=1.0).of_floor is None


def test_options_of_a_candidate_do_not_change_what_a_task_is_prepared_for() -> None:
    candidate = Options(
        effort="full", disabled_tripwires=("gc",), min_own_share=0.5, give_up_ratio=3.0, energy=True
    )
    assert candidate.for_preparation() == Options()
    for task in (Options(baselines=("compile",)), Options(sandbox="process"), Options(call_timeout=1.0)):
        assert task.for_preparation() == task


def test_an_interval_is_ordered() -> None:
    with pytest.raises(ValueError):
        Interval(1.0, 1.1, 1.2)


def test_identity_is_content() -> None:
    assert Task("a").id == Task("a", name="other").id
    assert len({Task("a").id, Task("b").id, Task("a", mode="eval").id, Task("a", precision="fp32").id}) == 4
    assert Candidate("a").id != Candidate("b").id


def test_not_finite_numbers_stay_valid_json() -> None:
    assert json.loads(Verdict("a", Status.WRONG, "off", error=float("inf")).dumps())["error"] == 1e308
    assert json.loads(Verdict("a", Status.WRONG, "off", error=float("nan")).dumps())["error"] is None


def test_a_missing_file_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match=r"^task file not found: nowhere\.py$"):
        Task.from_file("nowhere.py")


def test_a_live_module_is_the_same_task_wherever_its_values_lie() -> None:
    def made() -> Task:
        torch.manual_seed(1)
        return api.load_task(torch.nn.Linear(2, 2), [torch.arange(4096.0)])

    first, _elsewhere = made(), torch.zeros(4096)
    assert made() == first


def test_a_file_with_two_sizes_is_two_tasks() -> None:
    both = Task('TARGET = "cuda"\nSIZES = {"cuda": (9,), "cpu": (1,)}\n')
    small = both.for_target("cpu")
    assert both.for_target("cuda") == both and small.id != both.id and 'TARGET = "cpu"\n' in small.source
    assert small.for_target("cpu") == small and small.for_target("cuda") == both
    plain = Task("n = 3\n")
    assert plain.for_target("cpu") == plain


def test_an_identity_stays_when_a_later_version_adds_a_field() -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(Options):
        more: tuple[str, ...] = ()

    assert (
        Options(effort="full").nondefault_json()
        == Later(effort="full").nondefault_json()
        == '{"effort":"full"}'
    )
    assert Later(more=("x",)).nondefault_json() != Later().nondefault_json() == "{}"
    limits = replace(RunConfig(Task("t"), "cpu", "playbook"), limits=Limits(candidates=3))
    assert (
        '"limits":{"candidates":3}' in limits.nondefault_json()
        and '"task":{"source":"t"}' in limits.nondefault_json()
    )
