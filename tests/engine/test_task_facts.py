"""What a run knows about its task before the first candidate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine.known_lab import KnownLab

from kernelpro.engine.store import RunStore
from kernelpro.engine.task_facts import measure_task
from kernelpro.records import BaselineSeed, Interval, Job, ProbeData, Result, RunConfig, Task

pytestmark = pytest.mark.together
COMPILED = BaselineSeed("compile", "torch.compile", "# compiled")
EAGER = BaselineSeed("eager_fp32", "PyTorch", "# eager")
TF32 = BaselineSeed("eager_tf32", "PyTorch", "# eager")


class TimedLab(KnownLab):
    """A pool with these seeds and times of baselines."""

    def __init__(self, seeds: tuple[BaselineSeed, ...], **times: float):
        self.seeds = seeds
        self._times = {name: Interval(ms, ms, ms) for name, ms in times.items()}

    def _result(self, job: Job) -> Result:
        result = super()._result(job)
        if isinstance(result.data, ProbeData):
            return replace(result, data=replace(result.data, baselines=self._times))
        return result


@pytest.mark.parametrize(
    ("seeds", "times", "expected"),
    [
        ((COMPILED, EAGER), {"compile": 1.0, "eager_fp32": 2.0}, ["compile"]),
        ((COMPILED, EAGER), {"compile": 2.0, "eager_fp32": 1.0}, ["compile", "eager_fp32"]),
        ((COMPILED, EAGER), {"compile": 1.0, "eager_fp32": 1.02}, ["compile", "eager_fp32"]),
        ((EAGER, TF32), {"compile": 2.0, "eager_fp32": 3.0, "eager_tf32": 1.0}, ["eager_tf32"]),
        # the compiler leaves recurrent networks to PyTorch, and may still be timed as the fastest
        ((EAGER, TF32), {"compile": 1.0, "eager_fp32": 3.0, "eager_tf32": 2.0}, ["eager_tf32"]),
        ((), {"compile": 1.0}, []),
    ],
)
def test_the_first_seeds_contain_the_fastest_code_that_there_is(
    seeds: tuple[BaselineSeed, ...], times: dict[str, float], expected: list[str], tmp_path: Path
) -> None:
    lab = TimedLab(seeds, **times)
    config = RunConfig(Task("# a task", "task"), "cpu", "playbook")
    store = RunStore.create(tmp_path, config, "run")

    async def submit(job: Job) -> Any:
        return lab.run(job)

    facts = asyncio.run(measure_task(store, config, submit))
    store.close()
    assert [seed.baseline for seed in facts.seeds] == expected
