"""The benchmark benchmarks/energy_search.py, with a fake pool.

Its profile was recorded on an H200: a softmax whose exponentials cost energy but no time.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from authors.playbook_harness import make_task, operator_graph_of
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.records import Interval, Job, Profile, Result, StudyData, Task, Verdict

HERE = Path(__file__).parents[1]
sys.path.append(str(HERE.parent / "benchmarks"))

import energy_search  # noqa: E402

GELU = make_task("F.gelu(a)", "torch.randn(64, 64)")


class Lab(KnownLab):
    """All kernels take the same time; those with quick mathematics nine tenths of the power."""

    def __init__(self, given: Task):
        self._graph = operator_graph_of(given)
        recorded = json.loads(gzip.decompress((HERE / "defects" / "recorded" / "h200.json.gz").read_bytes()))
        self._profile = Profile.from_json(recorded["c_softmax_triton"])

    def verdict(self, job: Job, source: str) -> Verdict:
        power = 1.0 if parse_design(source).math == "library" else 0.9
        return verdict(0.5, power if job.options.energy else None)

    def _result(self, job: Job) -> Result:
        if job.kind == "profile":
            return Result(job.id, profile=self._profile)
        result = super()._result(job)
        if isinstance(result.data, StudyData):
            return replace(result, data=replace(result.data, graph=self._graph))
        return result


def test_candidates_answer_the_energy_findings(tmp_path: Path) -> None:
    result = energy_search.search(Lab(GELU), GELU, 4, ("triton", "cuda"), tmp_path)  # type: ignore[arg-type]
    steps = result["steps"]
    assert [step["parent"] for step in steps] == [0, 0, 1, 2], (
        "a design in each language, and a move from each"
    )
    assert [step["diagnostic"] for step in steps] == ["", "", "energy_costly_math", "energy_costly_math"]
    assert all("energy" in step["hypothesis"] for step in steps[2:]), steps
    assert result["winner"] in (3, 4) and energy_search.first_design(result) == result["winner"] - 2
    assert parse_design(steps[result["winner"] - 1]["source"]).math == "approximate"
    again = energy_search.search(Lab(GELU), GELU, 4, ("triton", "cuda"), tmp_path)  # type: ignore[arg-type]
    assert again["points"] == result["points"], "a finished run is not repeated"


def test_a_saving_counts_only_at_equal_speed_and_with_an_interval_below_one(tmp_path: Path) -> None:
    result = energy_search.search(Lab(GELU), GELU, 3, ("triton",), tmp_path)  # type: ignore[arg-type]
    assert [step["parent"] for step in result["steps"]][:2] == [0, 1] and result["winner"] > 1
    measured = verdict(0.5, 0.9).energy
    assert measured
    comparison = {
        "time_ratio": Interval(1.001, 0.99, 1.01).to_json(),
        "energy": measured.to_json(),
        "power_limited": False,
    }
    comparison["energy"]["watts"]["lean"] = comparison["energy"]["watts"][measured.baseline]
    assert energy_search.is_saving(result | {"comparison": comparison})
    assert "| 1.001 [0.990, 1.010] |" in energy_search.table_row(result | {"comparison": comparison})
    slower = comparison | {"time_ratio": Interval(1.05, 1.04, 1.06).to_json()}
    unclear = comparison | {
        "energy": comparison["energy"] | {"ratio": {"energy": Interval(0.99, 0.98, 1.001).to_json()}}
    }
    assert not any(
        energy_search.is_saving(result | {"comparison": other})
        for other in (slower, unclear, None, {"unavailable": "no counter"})
    )
    assert "nothing to compare: no counter" in energy_search.table_row(
        result | {"comparison": {"unavailable": "no counter"}}
    )
    less = {"ratio": Interval(0.9, 0.88, 0.92).to_json()}
    rested = {"time_ratio": comparison["time_ratio"], "unavailable": "steps were late", "spaced": less}
    assert energy_search.is_saving(result | {"comparison": rested})
    assert "| steps were late |  | 10.0% [8.0%, 12.0%] |" in energy_search.table_row(
        result | {"comparison": rested}
    )


@pytest.mark.parametrize("name", energy_search.DEFAULT)
def test_its_tasks_are_in_the_suite(name: str) -> None:
    assert next(energy_search.SUITE.glob(f"level*/{name}.py"))
