"""Shared fixtures: one warm worker for the whole run, and the `gpu` mark."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the process that only hands out tests needs no torch
    from in_process import WarmCommand
    from quick_judge import QuickJudge

    from kernelpro.lab.jobs import JobRunner
    from kernelpro.lab.sandbox.launcher import SandboxLauncher
    from kernelpro.pools.local import LocalPool

gc.disable()  # until all tests are imported: little of that is garbage
sys.path.insert(0, str(Path(__file__).parent))
os.environ["ONEDNN_JIT_PROFILE"] = (
    "0"  # a worker lives in this process: it would leave a list of what it compiled in /tmp
)

if _beside := os.environ.get("PYTEST_XDIST_WORKER"):
    # tests that run beside each other do not wait for each other's judgements, nor do threads spin for a core that another has;
    # to empty the cache before each call would take a quarter of a judgement
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KERNELPRO_CPU_FLUSH", "1")
    os.environ["KERNELPRO_LOCKS"] = f"/tmp/kernelpro-locks-{os.getuid()}-{_beside}"

TOGETHER = (
    "authors/test_algebra.py",
    "authors/test_anchors.py",
    "authors/test_answers.py",
    "authors/test_by_name.py",
    "authors/test_cuda_graph.py",
    "authors/test_masked_loads.py",
    "authors/test_cpp_functions.py",
    "authors/test_playbook",
    "authors/test_prompt_rules.py",
    "authors/test_team.py",
    "cli/",
    "defects/test_planted.py",
    "defects/test_static.py",
    "diagnose/",
    "docs/",
    "dropin/",
    "engine/test_budget.py",
    "engine/test_export.py",
    "engine/test_energy_run.py",
    "engine/test_energy_search.py",
    "engine/test_exported_guard.py",
    "engine/test_learning.py",
    "engine/test_loop.py",
    "engine/test_objective.py",
    "engine/test_profiling.py",
    "engine/test_shape_dispatch.py",
    "engine/test_steering",
    "engine/test_store.py",
    "engine/test_team_run.py",
    "exploits/",
    "lab/energy/test_pairs.py",
    "lab/energy/test_student.py",
    "lab/profile/test_cpu.py",
    "lab/profile/test_ncu.py",
    "lab/profile/test_nsys.py",
    "lab/profile/test_sass.py",
    "lab/profile/test_cupti_tracer.py",
    "lab/profile/test_sanitizer.py",
    "lab/profile/test_timeline",
    "lab/test_baselines.py",
    "lab/test_builds.py",
    "lab/test_compilation.py",
    "lab/test_completion.py",
    "lab/test_sandbox.py",
    "lab/test_extensions.py",
    "lab/test_give_up_limit.py",
    "lab/test_graph.py",
    "lab/test_languages.py",
    "lab/test_limited_memory.py",
    "lab/test_crash_reports.py",
    "lab/test_machine.py",
    "lab/test_memory_safety.py",
    "lab/test_no_leftover_files.py",
    "lab/test_unusual_rows.py",
    "lab/test_outputs.py",
    "lab/test_parameters.py",
    "lab/test_reads.py",
    "lab/test_round_runner.py",
    "lab/test_seeds.py",
    "lab/test_tasks.py",
    "lab/test_timing.py",
    "lab/test_tolerance.py",
    "lab/test_triton_ahead.py",
    "lab/test_tripwires.py",
    "lab/test_unseen_shapes.py",
    "lab/test_wire.py",
    "lab/test_worker.py",
    "lab/tuning/",
    "code_search/",
    "llm/",
    "memory/",
    "pools/test_local.py",
    "pools/test_notebook.py",
    "pools/test_packed.py",
    "pools/test_ray.py",
    "pools/test_spool.py",
    "pools/test_spool_torture.py",
    "pools/test_workers.py",
    "report/",
    "search/",
    "suites/test_bench.py",
    "suites/test_scoreboard.py",
    "suites/test_builtin.py",
    "suites/test_judge_suite.py",
    "suites/test_problems.py",
    "suites/test_published.py",
    "suites/test_racing_bench.py",
    "suites/test_statistics.py",
    "test_api.py",
    "test_architecture.py",
    "test_bad_input.py",
    "test_load_task.py",
    "test_profile.py",
    "test_records.py",
    "test_report_at_the_end.py",
    "test_shapes.py",
    "ui/",
)
"""Tests whose outcome does not depend on the clock: they run and judge beside each other, and no word of theirs is about speeds
that lie close together. All others have the machine to themselves. A test that is marked `together` or `alone` where it stands is
what it says."""


LONGEST = (
    "exploits/",
    "engine/test_loop.py",
    "authors/test_playbook_triton.py",
    "suites/test_bench.py",
    "pools/test_ray.py",
    "test_api.py",
    "authors/test_playbook_cuda.py",
    "docs/test_run",
    "test_bad_input.py",
    "lab/test_seeds.py",
    "ui/",
    "test_profile.py",
    "pools/",
    "dropin/",
    "suites/test_published.py",
    "lab/test_limited_memory.py",
    "engine/test_export",
    "defects/test_static.py",
    "lab/profile/",
)
"""Files that take longest come first, so that at the end no core waits for one of them."""


@cache
def _standing(path: Path) -> tuple[bool, int]:
    """Whether a file's tests run together, and its place. The sort is stable: within a file everything stays where it is."""
    name = str(path.relative_to(Path(__file__).parent))
    place = next((place for place, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))
    return name.startswith(TOGETHER), place


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """One process after the other does what is prepared once: a file; of the exploits those of one task."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            return (
                file + test.partition("[")[2].partition(",")[0] if file.endswith("test_exploits.py") else file
            )

    return Scheduler(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of one part of `make test`, import no file that has only tests of the other: it has no mark of this part."""
    part = str(config.option.markexpr).partition(" ")[0]
    if part not in ("together", "alone") or not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    own = "together" if _standing(collection_path)[0] else "alone"
    marked = re.search(rf"""(mark\.|["']){part}\b""", collection_path.read_text())
    return True if own != part and not marked else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("together", "alone")):
            item.add_marker(pytest.mark.together if _standing(item.path)[0] else pytest.mark.alone)
    items.sort(key=lambda item: _standing(item.path)[1])
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


def pytest_collection_finish() -> None:
    """What was imported stays: judging a new task collects garbage, and need not look through all of it."""
    gc.enable()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    import slowest

    slowest.show(terminalreporter, config)


def pytest_sessionfinish() -> None:
    atexit.register(gc.unfreeze)  # libraries report what is left at the end


@pytest.fixture(scope="session")
def launcher() -> Iterator[SandboxLauncher]:
    from kernelpro.lab.sandbox.launcher import SandboxLauncher

    launcher = SandboxLauncher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def worker(launcher: SandboxLauncher) -> Iterator[JobRunner]:
    from kernelpro.lab.jobs import JobRunner

    worker = JobRunner(launcher, lambda record: None)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def quick_judge(worker: JobRunner) -> QuickJudge:
    from quick_judge import QuickJudge

    return QuickJudge(worker)


@pytest.fixture(scope="session")
def local_pool() -> Iterator[LocalPool]:
    """One pool for all tests that need no worker of their own; its worker has started, in an environment that no test changed."""
    from kernelpro.pools.local import LocalPool
    from kernelpro.records import Job

    with LocalPool() as pool:
        pool.run(Job("start", "environment", target="cpu"))
        yield pool


@pytest.fixture(scope="session")
def warm_kernelpro(local_pool: LocalPool) -> WarmCommand:
    """Commands that take seconds less: neither they nor their workers start a process."""
    from in_process import WarmCommand

    return WarmCommand(local_pool)
