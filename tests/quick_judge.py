"""Judging in tests: one warm worker behind a short call."""

from __future__ import annotations

from pathlib import Path

from kernelpro.lab.jobs import JobRunner
from kernelpro.records import Candidate, Job, Options, Precision, Target, Task, Verdict


class QuickJudge:
    """Judges one candidate quickly, with the eager baseline only."""

    def __init__(self, worker: JobRunner):
        self._worker = worker

    def judge(self, task: Task, candidate: Candidate, target: Target = "cpu", **options: object) -> Verdict:
        """The verdict on a candidate; `options` are fields of Options."""
        settings: dict[str, object] = {
            "effort": "quick",
            "baselines": ("eager_fp32",),
            "call_timeout": 10.0,
            "build_timeout": 60.0,
        }
        job = Job("test", "judge", task, candidate, target, Options(**(settings | options)))  # type: ignore[arg-type]
        result = self._worker.run(job)
        assert result.verdict is not None, result.error
        return result.verdict

    def judge_files(
        self, task: Path, candidate: Path, precision: Precision | None = None, **options: object
    ) -> Verdict:
        """The same, of files."""
        return self.judge(
            Task.from_file(task, precision=precision),
            Candidate.from_file(candidate),
            **options,  # type: ignore[arg-type]
        )
